"""Callers that come through a failover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost, LockUnavailable


def patiently(name: str) -> int:
    """Wait for a lock however often its server is unavailable; return its fence."""
    while True:
        with contextlib.suppress(LockUnavailable):
            with lock(name, timeout=60) as held:
                return held.fence


async def apatiently(name: str) -> int:
    while True:
        with contextlib.suppress(LockUnavailable):
            async with lock(name, timeout=60) as held:
                return held.fence


def answered(ask: Callable[[], Any]) -> bool:
    """Return whether a call was answered, if only with LockLost."""
    try:
        ask()
    except LockUnavailable:
        return False
    except LockLost:
        return True
    return True


def check_asyncio_through(fail_over: Callable[[], None], name: str) -> None:
    """Check that tasks that hold a lock and wait for it come through a failover."""

    async def main() -> tuple[int, int]:
        held = lock(name, timeout=60)
        await held.aacquire()
        fence = held.fence
        task = asyncio.create_task(apatiently(name))
        while not await locks["default"].awaiting(name):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(fail_over)
        while True:
            try:
                await held.arelease()
                break
            except LockUnavailable:
                await asyncio.sleep(0.1)
        return fence, await asyncio.wait_for(task, 30)

    before, after = asyncio.run(main())
    assert after > before
