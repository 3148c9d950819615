"""Tasks for the options of one call, and for results in each serializer."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.backends.redis import RedisBackend

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import app
from tests.settings import server_url

SERIALIZERS = ("json", "pickle", "msgpack", "yaml")


def backend_of(serializer: str) -> RedisBackend:
    """Return a result backend with a serializer, apart from the others' results."""
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
    """Return the name of the current run's lock."""
    return single_instance_task.current().name


@app.task(shared=False, name="telling")
@single_instance_task
def telling(*items: Any) -> Any:
    """Return the name of its lock."""
    return [*items, lock_name()]


@app.task(shared=False, name="retried", bind=True, max_retries=2)
@single_instance_task(scope="queue_and_run")
def retried(self: Task) -> list[Any]:
    """Return the name of its last attempt's lock."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return [self.request.retries, lock_name()]


@app.task(shared=False, name="calls-waiting")
@single_instance_task(scope="queue")
def waiting(number: int = 0) -> list[Any]:
    """Return the name of its lock; its messages hold a place."""
    return [number, lock_name()]


@app.task(shared=False, name="gather")
def gather(items: list[Any]) -> list[Any]:
    """End a chord."""
    return items
