"""Runs functions in threads of their own."""

from __future__ import annotations

import _thread
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from django_redis_lock.support.process import AsyncBell, Bell

Result = TypeVar("Result")


class InThread(Generic[Result]):
    """A function that runs in a thread of its own, for any number of callers.

    No exception from a signal handler interrupts it, as handlers run in the main thread. Such an
    exception, and a cancellation, ends only the wait of a caller.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self.done = False
        self._function = function
        self._error: BaseException | None = None
        self._result: Result
        self._callbacks: list[Callable[[], object]] = []
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter shuts down
            self._run()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error.with_traceback(None)  # else it keeps this frame, and the frame it
        self.done = True
        for callback in [*self._callbacks]:
            callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call a function at the end, in any thread; it may be called twice."""
        self._callbacks.append(callback)
        if self.done:
            callback()

    def result(self, until: float = math.inf) -> Result:
        """Return what the function returns, or raise what it raises.

        Raises ``TimeoutError`` if it has not ended ``until`` (monotonic).
        """
        bell = Bell()
        self.when_done(bell.ring)
        bell.wait(until)
        if not self.done:
            raise TimeoutError("The server did not answer in time")
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            del self  # else the error keeps this frame, and the frame it

    async def aresult(self) -> Result:
        """Return or raise the same, without blocking the event loop or using its executor."""
        bell = AsyncBell()
        self.when_done(bell.ring)
        await bell.wait(math.inf)
        try:
            return self.result()
        finally:
            del self
