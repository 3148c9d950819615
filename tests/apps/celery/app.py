"""The app whose tasks real workers run in the tests, and others that send to the same workers."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_redis_lock.celery import policies
from tests.settings import server_url

QUEUE_NAME = "tests"
NOWHERE = "nowhere"
"""A queue that no worker consumes."""
RUN, QUEUE, QUEUE_AND_RUN = SCOPES = ("run", "queue", "queue_and_run")
WAITING = (QUEUE, QUEUE_AND_RUN)
"""The scopes that take a lock when a task is sent."""
THEMES = ("deaths", "scopes")

# What a test sets in the environment of its worker.
PATIENCE = "LOCK_TEST_PATIENCE"
"""Seconds for which a delivery waits for another one of the same task."""

if PATIENCE in os.environ:
    policies.WAIT_FOR_FIRST = float(os.environ[PATIENCE])

apps: list[Celery] = []


def new_app(name: str, broker: str = server_url(10), **conf: Any) -> Celery:
    """Return an app on the session's server that leaves the current app as it is."""
    made = Celery(name, broker=broker, backend=server_url(11), set_as_current=False)
    made.conf.update(
        broker_transport_options={"app": f"{name} {broker}"},  # apart from the pools of other apps
        broker_connection_retry_on_startup=True,
        task_default_queue=QUEUE_NAME,
        worker_prefetch_multiplier=1,
        worker_lost_wait=1,
    )
    made.conf.update(conf)
    apps.append(made)
    return made


app = new_app(
    "tests",
    accept_content=["json", "pickle"],
    include=[f"{__package__}.{theme}" for theme in THEMES],
)
app.set_default()
app.set_current()
