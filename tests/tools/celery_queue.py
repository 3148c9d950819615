"""What the tests of scopes, conflicts and canvases share: their worker, and what it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.apps import celery_queue_app
from tests.settings import server_url
from tests.tools import eventually
from tests.tools.celery_worker import Worker, running_worker


@contextmanager
def queue_worker(
    server: EmbeddedServer,
    directory: Path,
    module: ModuleType = celery_queue_app,
    queue: str = celery_queue_app.QUEUE_NAME,
) -> Iterator[Worker]:
    """Run a worker of a module's app with five child processes on an empty server."""
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()
    with running_worker(
        directory,
        app=module.__name__,
        concurrency=5,
        queue=queue,
        environment={"DJANGO_SETTINGS_MODULE": "tests.apps.celery_queue_settings"},
    ) as worker:
        yield worker
    locks.reset()
    for app in (module.app, celery_queue_app.beat_app):
        disconnect(app)
    celery_queue_app.pickled.backend.client.connection_pool.disconnect()


def disconnect(app: Celery) -> None:
    """Close what an app has open, so that the next module that uses it begins anew."""
    app.pool.force_close_all(close_pool=False)
    app.backend.client.connection_pool.disconnect()
    for group in (pools.producers, pools.connections):
        with suppress(KeyError):
            del group[app.connection_for_write()]
    app._after_fork()


def key_of(task: Any, what: str) -> str:
    """Return the name of the lock of a run."""
    return f"{task.name}:{what}"


def place_of(task: Any, what: str) -> str:
    """Return the name of the lock that a waiting message holds, by the scope in the name."""
    key = key_of(task, what)
    return f"{key}:queued" if task.name.endswith("-queue") else key


def held(what: str) -> list[str]:
    """Return the names of the locks about something."""
    return sorted(holder.name for holder in locks["default"].holders(pattern=f"*{what}*"))


def all_free(what: str) -> None:
    """Wait until no lock about something is held, neither by a run nor by a message."""
    eventually(lambda: not held(what), f"{what} free")


def ran(client: redis.Redis, what: str) -> list[str]:
    """Return the notes that tasks left."""
    return client.lrange(f"ran:{what}", 0, -1)


def fences() -> str | None:
    """Return the last fence that was given; another one tells that a lock was taken meanwhile."""
    with redis.Redis.from_url(server_url(), decode_responses=True) as server:
        return server.get("lock-fence")


def takes_no_lock(act: Callable[[], None]) -> None:
    """Fail if an action takes a lock; tasks of other tests may, but hardly each time."""
    for _ in range(5):
        before = fences()
        act()
        if fences() == before:
            return
    pytest.fail("each time a lock was taken")


def told(client: redis.Redis, task_id: str, kind: str) -> list[dict[str, Any]]:
    """Return the signals of a kind that the worker sent about a task."""
    signals = map(json.loads, client.lrange(f"signals:{task_id}", 0, -1))
    return [item for item in signals if item["kind"] == kind]


def messages(queue: str) -> int:
    """Return how many messages wait in a queue."""
    with redis.Redis.from_url(server_url(10)) as broker:
        return broker.llen(queue)
