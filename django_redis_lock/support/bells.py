"""Wake a sleeping thread or asyncio task, safely even from a signal handler."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from time import monotonic

LONGEST_SLEEP = 3600.0
"""Seconds of one sleep at most. A wait without limit sleeps again after that."""


class Bell:
    """Wakes one thread, once.

    If an exception from a signal handler meets a ``threading.Event`` at a bad moment, the event
    raises RuntimeError in its place. A bare lock does not, and costs less.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the wait, or the one to come."""
        with contextlib.suppress(RuntimeError):  # it has rung before
            self._lock.release()

    def wait(self, until: float) -> None:
        """Block until it rings, or until ``until`` (monotonic), or for an hour."""
        self._lock.acquire(timeout=_seconds_to(until))


class AsyncBell:
    """Wakes one asyncio task, once, from any thread."""

    __slots__ = ("_loop", "_woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> bool:
        """End the wait, or the one to come; return False if the event loop has been closed."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, until: float) -> None:
        """Wait until it rings, or until ``until`` (monotonic), or for an hour."""
        timer = self._loop.call_later(_seconds_to(until), self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()


def _seconds_to(until: float) -> float:
    return min(max(0.0, until - monotonic()), LONGEST_SLEEP)
