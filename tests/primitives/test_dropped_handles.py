"""A handle that is dropped after an error is gone at once, so that nothing renews its lock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_redis_lock import lock, lock_many
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.tools import PATIENCE, Background

METHODS = ["acquire", "ensure_held", "extend", "reacquire", "owned", "release", "block"]
CASES = [
    ("redis.RedisLockBackend", "gone", "lock", METHODS),
    ("redis.RedisLockBackend", "gone", "group", METHODS),
    ("getset.GetSetLockBackend", "gone", "lock", METHODS),
    ("redis.RedisLockBackend", "silent", "lock", ["acquire", "block"]),
]


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing but the last reference to an object delete it."""
    gc.disable()
    yield
    gc.enable()


def use(handle: Any, method: str, fail: Callable[[], object]) -> bool:
    """Return whether the server was unavailable."""
    with contextlib.suppress(LockUnavailable):
        if method == "block":
            with handle:
                fail()
        elif method == "acquire":
            fail()
            handle.acquire()
        else:
            handle.acquire()
            fail()
            getattr(handle, method)(*[1] if method == "extend" else [])
        return False
    return True


async def ause(handle: Any, method: str, fail: Callable[[], object]) -> bool:
    """Do the same; a task that fails would keep its error itself."""
    with contextlib.suppress(LockUnavailable):
        if method == "block":
            async with handle:
                fail()
        elif method == "acquire":
            fail()
            await handle.aacquire()
        else:
            await handle.aacquire()
            fail()
            await getattr(handle, "a" + method)(*[1] if method == "extend" else [])
        return False
    return True


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(("path", "how", "kind", "methods"), CASES)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_error_keeps_no_handle(
    name: str,
    settings: Any,
    own_server: EmbeddedServer,
    kind: str,
    how: str,
    methods: list[str],
    path: str,
    is_async: bool,
) -> None:
    """It is in no cycle of the error, its traceback and their frames. Each method has a thread."""
    url = own_server.url() + "?socket_timeout=0.2"
    settings.LOCKS = {"default": {"BACKEND": f"django_redis_lock.backends.{path}", "LOCATION": url}}
    ends = own_server.kill if how == "gone" else own_server.pause
    fail = threading.Barrier(len(methods), ends, PATIENCE).wait

    def left(method: str) -> tuple[bool, object]:
        """Return whether the server was unavailable, and the handle if it still exists."""
        names = [f"{name}-{method}", f"{name}-{method}-x"]
        handle: Any = lock(names[0], 30, auto_renew=True)
        if kind == "group":
            handle = lock_many(names, 30)
        reference = weakref.ref(handle)
        unavailable = (
            asyncio.run(ause(handle, method, fail)) if is_async else use(handle, method, fail)
        )
        del handle
        return unavailable, reference()

    started = {method: Background(partial(left, method)) for method in methods}
    found = {method: each.outcome() for method, each in started.items()}
    assert found == dict.fromkeys(methods, (True, None))
    if how == "silent":
        own_server.resume()


def test_an_error_that_is_being_handled_keeps_its_traceback(
    name: str, settings: Any, own_server: EmbeddedServer
) -> None:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError) as caught:
        try:
            fail()
        except LookupError:
            own_server.kill()
            with pytest.raises(LockUnavailable):
                lock(name, blocking_timeout=0).acquire()
            raise
    assert [each.name for each in caught.traceback][-1] == "fail"
