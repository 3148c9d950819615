"""A server that falls silent: how long a caller that gave a limit to its wait is kept."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.tools import Background
from tests.tools.proxy import Proxy

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"


def entries(port: int) -> dict[str, Any]:
    """Return entries of LOCKS, and of CACHES, whose sockets would wait for a minute, or for ever.
    ``tests/protocol/test_locking.py`` has the figures of how long a caller is kept."""
    url = f"redis://127.0.0.1:{port}/0"
    patient = {"LOCATION": f"{url}?socket_timeout=60&socket_connect_timeout=60"}
    of_django_redis = {"BACKEND": "django_redis.cache.RedisCache"}  # with no timeouts of its own
    return {
        "CACHES": {"endless": {**of_django_redis, "LOCATION": url}},
        "LOCKS": {
            "default": {"LOCATION": url},
            "endless": {"LOCATION": "endless"},
            "popping": {**patient, "OPTIONS": {"WAIT": "blpop"}},
            "getset": {**patient, "BACKEND": GETSET},
        },
    }


@pytest.fixture
def proxy(server: EmbeddedServer, settings: Any) -> Iterator[Proxy]:
    """A proxy in front of the server, which all aliases of LOCKS but "direct" go through."""
    with Proxy(server.port) as proxy:
        for setting, value in entries(proxy.port).items():
            setattr(settings, setting, {**getattr(settings, setting), **value})
        settings.LOCKS["direct"] = {**settings.LOCKS["default"], "LOCATION": server.url()}
        locks.reset()
        yield proxy
        locks.reset()


USING = list(entries(0)["LOCKS"])


def blocking(handle: Lock) -> bool:
    return handle.acquire()


def awaiting(handle: Lock) -> bool:
    return asyncio.run(handle.aacquire())


def is_unavailable(acquire: Callable[[Lock], bool], handle: Lock) -> None:
    with pytest.raises(LockUnavailable):
        acquire(handle)


def started(name: str, wait: dict[str, Any]) -> list[Background]:
    """Start callers of each kind, in threads and in tasks, on each alias."""
    return [
        Background(
            partial(
                is_unavailable,
                acquire,
                lock(f"{name}-{acquire.__name__}", timeout=20, using=using, **wait),
            )
        )
        for using in USING
        for acquire in (blocking, awaiting)
    ]


@pytest.mark.parametrize(
    ("wait", "connected"), [({"blocking": False}, True), ({"blocking_timeout": 0.2}, False)]
)
def test_a_silent_server_keeps_a_caller_no_longer_than_its_wait(
    name: str, proxy: Proxy, wait: dict[str, Any], connected: bool
) -> None:
    """Whatever the socket timeout is; and a lock that it grants too late is released."""
    if connected:
        for using in USING:
            with lock(f"{name}-before", timeout=20, using=using):
                pass
    proxy.hold_back()
    for caller in started(name, wait):
        caller.outcome()
    proxy.let_go()
    for using in USING:
        for acquire in (blocking, awaiting):
            handle = lock(f"{name}-{acquire.__name__}", timeout=20, using=using)
            assert handle.acquire(blocking_timeout=10)
            handle.release()


@contextmanager
def unanswered_port() -> Iterator[int]:
    """Listen on a port whose queue is full, so that the kernel drops whoever connects."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = []
        while True:
            filler = socket.socket()
            filler.settimeout(0.2)
            fillers.append(filler)
            try:
                filler.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        try:
            yield port
        finally:
            for filler in fillers:
                filler.close()


def test_a_host_that_does_not_answer(name: str, settings: Any) -> None:
    """Neither does a host keep a caller that drops its packets."""
    with unanswered_port() as port:
        for setting, value in entries(port).items():
            setattr(settings, setting, {**getattr(settings, setting), **value})
        locks.reset()
        for caller in started(name, {"blocking": False}):
            caller.outcome()
        locks.reset()


def test_a_silent_connection_is_not_kept_for_the_next_task(name: str, proxy: Proxy) -> None:
    """A task that gives up on it closes it, so the next one opens another."""

    async def main() -> None:
        async with lock(name, timeout=20):
            pass
        proxy.silence()
        with pytest.raises(LockUnavailable):
            await lock(name, blocking=False).aacquire()
        assert await lock(f"{name}-2", blocking=False).aacquire()

    asyncio.run(main())


def test_a_blocked_event_loop_is_no_silent_server(name: str, proxy: Proxy) -> None:
    """An answer that arrived while the loop was blocked counts, however late it is read."""

    async def main() -> bool:
        async with lock(name, timeout=20):
            pass
        acquiring = asyncio.ensure_future(lock(name, timeout=20, blocking=False).aacquire())
        await asyncio.sleep(0)  # it is sent
        time.sleep(1.6)  # noqa: ASYNC251 - it blocks the loop
        return await acquiring

    assert asyncio.run(main())
