"""The Celery app whose tasks a real worker runs in the tests of options, calls and results."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from celery import Celery, Task
from celery.backends.redis import RedisBackend

from django_redis_lock.celery import single_instance_task
from tests.apps.celery_queue_app import new_app
from tests.settings import server_url

QUEUE_NAME = "options"
SERIALIZERS = ("json", "pickle", "msgpack", "yaml")

app: Celery = new_app("options")
app.conf.task_default_queue = QUEUE_NAME


def backend_of(serializer: str) -> RedisBackend:
    """Return a result backend apart from those of the others, in its own way of writing."""
    backend = RedisBackend(
        app=app, url=server_url(11), serializer=serializer, accept=[serializer, "json"]
    )
    backend.task_keyprefix = backend.task_keyprefix + serializer.encode()
    return backend


def _define(name: str, serializer: str, **options: Any) -> Any:
    @app.task(shared=False, name=f"{name}-{serializer}", backend=backend_of(serializer))
    @single_instance_task(**options)
    def run() -> str:
        return "ran"

    return run


skipping = {item: _define("skipping", item) for item in SERIALIZERS}
raising = {item: _define("raising", item, on_conflict="raise") for item in SERIALIZERS}
ignoring = {item: _define("ignoring", item, on_conflict="ignore") for item in SERIALIZERS}


def lock_name() -> str:
    """Return the name of the lock of the run in hand."""
    return single_instance_task.current().name


@app.task(shared=False, name="telling")
@single_instance_task
def telling(*items: Any) -> Any:
    """Tell which lock it has."""
    return [*items, lock_name()]


@app.task(shared=False, name="retried", bind=True, max_retries=2)
@single_instance_task(scope="queue_and_run")
def retried(self: Task) -> list[Any]:
    """Tell which lock its last attempt has."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return [self.request.retries, lock_name()]


@app.task(shared=False, name="waiting")
@single_instance_task(scope="queue")
def waiting(number: int = 0) -> list[Any]:
    """Tell which lock it has; a message of it waits."""
    return [number, lock_name()]


@app.task(shared=False, name="gather")
def gather(items: list[Any]) -> list[Any]:
    """End a chord."""
    return items
