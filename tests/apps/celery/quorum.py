"""The tasks of the tests of quorum queues, where the broker itself delays messages."""

from __future__ import annotations

from celery import Celery

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import SCOPES, new_app
from tests.apps.celery.brokers import SAFE, be_quick, wait

QUEUE_NAME = "quorum"
EARLY, LATE = ACKNOWLEDGED = ("early", "late")
BRIEFLY = 0.5
"""Seconds; the broker knows none below one."""


def make_app(broker: str) -> Celery:
    """Return an app whose queue is a quorum queue of RabbitMQ."""
    app = new_app(
        "quorum",
        broker,
        task_default_queue=QUEUE_NAME,
        task_default_queue_type="quorum",
        task_default_exchange=QUEUE_NAME,
        task_default_exchange_type="topic",
        task_default_routing_key=QUEUE_NAME,
    )
    for acknowledged in ACKNOWLEDGED:
        options = SAFE if acknowledged == LATE else {}
        guard = single_instance_task(
            key="back:{what}", on_conflict={"run": "retry"}, countdown=BRIEFLY
        )
        app.task(name=f"back-{acknowledged}", shared=False, **options)(guard(wait))
    guard = single_instance_task(key="parked:{what}", on_conflict="park")
    app.task(name="parked-quorum", shared=False)(guard(be_quick))
    for scope in SCOPES:
        guard = single_instance_task(key=f"{scope}:{{what}}", scope=scope)
        app.task(name=f"quick-{scope}", shared=False)(guard(be_quick))
    app.finalize()
    return app
