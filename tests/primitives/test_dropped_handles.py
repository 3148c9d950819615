"""A handle that is dropped after an error is gone at once, so that nothing renews its lock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_lock import lock, lock_many
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "acquire": (),
    "__enter__": (),
    "ensure_held": (),
    "extend": (1,),
    "reacquire": (),
    "owned": (),
    "release": (),
    "__exit__": (None, None, None),
}


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing but the last reference to an object delete it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("kind", ["lock", "group"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_error_keeps_no_handle(
    name: str,
    settings: Any,
    own_server: EmbeddedServer,
    kind: str,
    is_async: bool,
    monkeypatch: Any,
) -> None:
    """It is in no cycle of the error, its traceback and their frames."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_FOR", -1.0)

    def fails(handle: Any, method: str) -> bool:
        with contextlib.suppress(LockUnavailable):
            getattr(handle, method)(*ARGUMENTS[method])
            return False
        return True

    async def afails(handle: Any, method: str) -> bool:  # a task that fails would hold its error
        asynchronous = f"__a{method[2:]}" if method[0] == "_" else f"a{method}"
        with contextlib.suppress(LockUnavailable):
            await getattr(handle, asynchronous)(*ARGUMENTS[method])
            return False
        return True

    handles: dict[str, Any] = {}
    for method in ARGUMENTS:
        names = [f"{name}-{method}", f"{name}-{method}-x"]
        handles[method] = lock_many(names, 30) if kind == "group" else lock(names[0], 30)
        if method not in ("acquire", "__enter__"):
            handles[method].acquire()
    own_server.kill()
    for method in ARGUMENTS:
        handle = handles.pop(method)
        reference = weakref.ref(handle)
        assert asyncio.run(afails(handle, method)) if is_async else fails(handle, method)
        del handle
        assert reference() is None, method
