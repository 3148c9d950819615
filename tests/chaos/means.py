"""The two ways to use a handle: blocking calls of a thread, or awaited calls of a task.

What callers do is written once, as coroutines. A thread runs one that never suspends, because
its means block.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from django_redis_lock import Lock


class GaveUp(Exception):
    """A call was interrupted."""


class Interrupted(BaseException):
    """What a signal handler raises, like KeyboardInterrupt or Celery's soft time limit."""


class Blocking:
    """Uses the blocking methods. Signals interrupt the main thread only."""

    def __init__(self) -> None:
        self.can_give_up = threading.current_thread() is threading.main_thread()
        self._armed = False
        if self.can_give_up:
            signal.signal(signal.SIGALRM, self._interrupt)

    async def do(self, lock: Lock, operation: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(lock, operation)(*args, **kwargs)

    async def give_up(self, lock: Lock, operation: str, seconds: float) -> Any:
        """Call the method, and let a signal handler raise after so many seconds: ``GaveUp``.

        The garbage collector is off meanwhile: with it the exception sometimes vanished before any
        of our frames saw it.
        """
        gc.disable()
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                return getattr(lock, operation)()
            finally:
                self._armed = False
        except Interrupted:
            raise GaveUp from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.enable()

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs in this thread

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # CPython 3.11 and 3.12 may call a handler late, even after the timer was stopped.
        if self._armed:
            raise Interrupted


class Awaiting:
    """Uses the methods for asyncio."""

    can_give_up = True

    async def do(self, lock: Lock, operation: str, *args: Any, **kwargs: Any) -> Any:
        name = operation.replace("__", "__a", 1) if operation[0] == "_" else f"a{operation}"
        return await getattr(lock, name)(*args, **kwargs)

    async def give_up(self, lock: Lock, operation: str, seconds: float) -> Any:
        """Await the method in a task that is cancelled meanwhile, twice in a row."""
        task = asyncio.ensure_future(self.do(lock, operation))
        for patience in (seconds, 0):
            await asyncio.wait([task], timeout=patience)
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise GaveUp from None

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
