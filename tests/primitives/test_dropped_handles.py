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

METHODS = ["acquire", "block", "ensure_held", "extend", "reacquire", "owned", "release"]


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
        if method == "acquire":
            fail()
        handle.acquire()
        fail()
        getattr(handle, method)(*[1] * (method == "extend"))
        return False
    return True


async def ause(handle: Any, method: str, fail: Callable[[], object]) -> bool:
    """Do the same; a task that fails would hold its error itself."""
    with contextlib.suppress(LockUnavailable):
        if method == "block":
            async with handle:
                fail()
        if method == "acquire":
            fail()
        await handle.aacquire()
        fail()
        await getattr(handle, "a" + method)(*[1] * (method == "extend"))
        return False
    return True


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("path", ["redis.RedisLockBackend", "getset.GetSetLockBackend"])
@pytest.mark.parametrize("kind", ["lock", "group"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_error_keeps_no_handle(
    name: str, settings: Any, own_server: EmbeddedServer, path: str, kind: str, is_async: bool
) -> None:
    """It is in no cycle of the error, its traceback and their frames. Each method has a thread."""
    backend = f"django_redis_lock.backends.{path}"
    settings.LOCKS = {"default": {"BACKEND": backend, "LOCATION": own_server.url()}}
    fail = threading.Barrier(len(METHODS), own_server.kill, PATIENCE).wait

    def left(method: str) -> tuple[bool, object]:
        """Return whether the server was unavailable, and the handle if it still exists."""
        names = [f"{name}-{method}", f"{name}-{method}-x"]
        handle: Any = lock_many(names, 30) if kind == "group" else lock(names[0], 30)
        reference = weakref.ref(handle)
        unavailable = (
            asyncio.run(ause(handle, method, fail)) if is_async else use(handle, method, fail)
        )
        del handle
        return unavailable, reference()

    started = {method: Background(partial(left, method)) for method in METHODS}
    found = {method: each.outcome() for method, each in started.items()}
    assert found == dict.fromkeys(METHODS, (True, None))
