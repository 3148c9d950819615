"""The two ways to use a handle: blocking calls of a thread, or awaited calls of a task. What
callers do is written once, as coroutines. A thread runs one that never suspends, because its means
block."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from django_redis_lock import Lock


class Blocking:
    async def do(self, lock: Lock, operation: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(lock, operation)(*args, **kwargs)

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs in this thread


class Awaiting:
    async def do(self, lock: Lock, operation: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(lock, f"a{operation}")(*args, **kwargs)

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Means = Blocking | Awaiting


def run_blocking(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine whose means block, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a caller that should block has suspended")
