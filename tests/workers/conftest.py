"""A worker whose children tests may kill, and what they ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection

from django_redis_lock import Holder, locks
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import PATIENCE, QUEUE_NAME, apps
from tests.apps.celery.settings import PROXY
from tests.settings import PORT, server_url
from tests.tools import eventually, waiters
from tests.tools.celery_worker import Worker, disconnect, events, running_worker
from tests.tools.proxy import Proxy

BUSY = 4.0
"""Seconds for which a run takes no notice of anything, in which others come to wait for it."""
DUE = 4
"""Seconds after which messages are due that are revoked before."""


@contextlib.contextmanager
def worker_of_deaths(directory: Path, *options: str, **more: Any) -> Iterator[Worker]:
    with running_worker(directory, *options, **{"concurrency": 2, **more}) as worker:
        yield worker


@pytest.fixture(scope="module")
def server_of_deaths(session_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's server, empty for this module."""
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    yield session_server
    locks.reset()
    disconnect(*apps)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy(PORT) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(
    server_of_deaths: EmbeddedServer, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    directory = tmp_path_factory.mktemp("worker")
    environment = {PROXY: str(proxy.port), PATIENCE: "1"}
    with worker_of_deaths(directory, concurrency=6, environment=environment) as worker:
        yield worker


@pytest.fixture
def client(server_of_deaths: EmbeddedServer) -> Iterator[redis.Redis]:
    with events() as client:
        client.flushdb()
        yield client


def holder_of(name: str) -> Holder:
    holder = locks["default"].holder(name)
    assert holder is not None
    return holder


def free_beyond_the_proxy(name: str) -> None:
    """Wait until a lock is free that was taken by way of the proxy."""
    with redis.Redis.from_url(server_url()) as server:
        eventually(lambda: not server.exists(f"proxied:{name}"), f"{name} free")


def check_one_at_a_time(client: redis.Redis, name: str, runs: int) -> None:
    """Check how often a task began, and that each time no other run of it was alive."""
    assert client.lrange(f"overlaps:{name}", 0, -1) == []
    assert int(client.get(f"runs:{name}") or 0) == runs


def deliver_again(worker: Worker, result: Any) -> None:
    """Deliver again what is not acknowledged; wait until that finds the first one running."""
    text = f"[{result.id}] began to wait: lock"
    before = len(worker.lines(text))
    restore_unacknowledged()
    eventually(lambda: len(worker.lines(text)) > before, "another delivery")


def restore_unacknowledged() -> None:
    """Put what is not acknowledged back into its queue, as the broker does in time."""
    options = {"visibility_timeout": 0}
    with Connection(server_url(10), transport_options=options) as connection:
        connection.default_channel.qos.restore_visible(interval=1)


def waiting(name: str) -> None:
    eventually(lambda: waiters(name) == 1, f"a waiter for {name}")


def acknowledged() -> None:
    """Wait until no message is waiting or in the hands of a worker."""
    with redis.Redis.from_url(server_url(10)) as broker:
        eventually(
            lambda: not broker.llen(QUEUE_NAME) and not broker.hlen("unacked"),
            "all messages acknowledged",
        )


def succeeded(worker: Worker, result: Any) -> None:
    """Wait for a success in the log, as an earlier run's failure may be stored last."""
    eventually(lambda: worker.lines(f"[{result.id}] succeeded"), "success")
