"""The Celery app whose worker is asked what waits for which lock, and whose queue is purged."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from celery import Celery

from django_redis_lock.celery import inspecting, single_instance_task
from tests.settings import server_url
from tests.tools.celery_worker import events, tell_and_wait

app = Celery(
    "inspected",
    broker=os.environ.get("INSPECT_BROKER") or server_url(10),
    backend=server_url(11),
    fixups=["celery.fixups.django:DjangoFixup"],
    set_as_current=False,
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="inspected",
    broker_transport_options={"app": "inspected"},  # apart from the pools of other apps
    worker_prefetch_multiplier=1,
)

inspecting.PATIENCE = 2.0  # a busy machine takes its time


def hanging_key(what: str) -> str:
    """Find the key when the test says so."""
    with events() as client:
        client.rpush("key asked", what)
        client.blpop([f"key:{what}"], timeout=60)
    return f"hanging:{what}"


def broken_key(what: str) -> str:
    """Find no key."""
    raise LookupError(what)


def _task(name: str, **options: Any) -> Any:
    options = {"key": name + ":{what}", **options}
    return app.task(name=name, shared=False)(single_instance_task(**options)(_wait))


def _wait(what: str) -> str:
    """Run until the test says go."""
    return tell_and_wait(what)


plain = _task("plain")
waiting = _task("waiting", key="plain:{what}", on_conflict="wait")
again = _task("again", key="plain:{what}", on_conflict="retry", countdown=3600)
queued = _task("queued", scope="queue")
throughout = _task("throughout", scope="queue_and_run")
several = _task("several", concurrency=2, on_conflict="wait")
silent = _task("silent", using="silent")
hanging = _task("hanging", key=hanging_key)
broken = _task("keyless-one", key=broken_key)
unguarded = app.task(name="unguarded", shared=False)(_wait)
