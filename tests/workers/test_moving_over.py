"""A Celery project moves over while old and new processes run: real workers of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery_once import AlreadyQueued

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.apps.moving import NEW, OLD, OLD_LOCKS, new, old
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, disconnect, events, go, running_worker, started

TASKS = ("import_products", "build_index")


@pytest.fixture(scope="module")
def workers(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Worker]]:
    """A worker with the old code and one with the new code and the bridges."""
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    apps = {OLD: "tests.apps.moving.old", NEW: "tests.apps.moving.new_worker"}
    with ExitStack() as stack:
        yield {
            queue: stack.enter_context(
                running_worker(
                    tmp_path_factory.mktemp(queue),
                    app=app,
                    pool="threads",
                    concurrency=2,
                    queue=queue,
                    environment={"DJANGO_SETTINGS_MODULE": "tests.settings"},
                )
            )
            for queue, app in apps.items()
        }
    locks.reset()
    disconnect(old.app, new.app)


@pytest.fixture
def client(workers: dict[str, Worker]) -> Iterator[redis.Redis]:
    """The database through which tasks and tests talk, empty, as is that of the old locks."""
    with events() as client, redis.Redis.from_url(OLD_LOCKS) as old_locks:
        client.flushdb()
        old_locks.flushdb()
        yield client


def old_keys() -> list[bytes]:
    with redis.Redis.from_url(OLD_LOCKS) as client:
        return list(client.keys())


def held() -> list[str]:
    return [holder.name for holder in locks["default"].holders()]


@pytest.mark.parametrize("task", TASKS)
def test_new_workers_run_one_whoever_sent_it(
    client: redis.Redis, workers: dict[str, Worker], task: str
) -> None:
    """A run of an old message has both locks, and a new one comes again until it has ended."""
    send = getattr(old, task)
    first = send.apply_async(("7",), queue=NEW)
    started(client, "7")
    assert held() == [f'{send.name}:shop_id="7"']
    assert refused(lambda: send.apply_async(("7",), queue=NEW), first)
    second = getattr(new, task).apply_async(("7",), queue=NEW)
    eventually(lambda: workers[NEW].lines(f"[{second.id}] comes again"))
    assert old_keys()  # only the end of the run frees the old lock
    go(client, "7")
    assert first.get(timeout=WAIT) == "go"
    started(client, "7")
    go(client, "7")
    assert second.get(timeout=WAIT) == "go"
    eventually(lambda: not old_keys() and not held(), "both locks free")


@pytest.mark.parametrize("task", TASKS)
def test_old_workers_do_not_ask_for_our_lock(client: redis.Redis, task: str) -> None:
    """Which is why workers are deployed before senders."""
    result = getattr(new, task).apply_async(("7",), queue=OLD)
    started(client, "7")
    assert held() == []
    go(client, "7")
    assert result.get(timeout=WAIT) == "go"


def refused(send: Callable[[], Any], first: Any) -> bool:
    try:
        return bool(send().id == first.id)
    except AlreadyQueued:
        return True
