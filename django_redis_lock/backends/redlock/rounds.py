"""One call that several servers were asked at once, and when enough of them have answered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from time import monotonic
from typing import Any

import redis

from django_redis_lock.backends.redlock.wires import Letter


class Pending:
    """Stands for an answer that has not come yet."""


PENDING = Pending()


class Round:
    """A call that was sent to all servers, and what they have answered.

    ``fold`` is given the answers so far, one a server (exceptions among them, and ``PENDING``), and
    returns what they come to, or ``PENDING`` as long as those that are missing could change it. It
    may raise. After ``timeout`` seconds a missing answer counts as an exception.
    """

    def __init__(self, size: int, fold: Callable[[list[Any]], Any], timeout: float) -> None:
        self.answers: list[Any] = [PENDING] * size
        self.letters: list[Letter] = []
        self._fold = fold
        self._until = monotonic() + timeout
        self._mutex = threading.Lock()
        self._outcome: Any = PENDING
        self._error: Exception | None = None
        self._closed = False
        self._wake: Callable[[], object] | None = None

    def take(self, index: int, answer: Any) -> None:
        """Take in what a server answered; after the outcome is known it changes nothing."""
        with self._mutex:
            if self._closed:
                return
            self.answers[index] = answer
            self._decide()
            wake = self._wake if self._closed else None
        if wake is not None:
            wake()

    def _decide(self) -> None:
        try:
            self._outcome = self._fold(self.answers)
        except Exception as error:
            self._error = error
        self._closed = self._error is not None or self._outcome is not PENDING

    def _woken_by(self, wake: Callable[[], object]) -> bool:
        """Have ``wake`` called when the outcome is known; return False where it is already."""
        with self._mutex:
            self._wake = wake
            return not self._closed

    def wait(self) -> None:
        """Block until the outcome is known."""
        # Not an Event: a signal's exception in its code would hold up who sets it, for ever.
        bell = threading.Lock()
        bell.acquire()
        if self._woken_by(bell.release):  # which is done once at the most
            left = max(0.0, self._until - monotonic())
            bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        self._close()

    async def await_(self) -> None:
        """Wait as ``wait`` does, under asyncio."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake_from_anywhere() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and the wait with it
                loop.call_soon_threadsafe(wake)

        timer = loop.call_later(max(0.0, self._until - monotonic()), wake)
        try:
            if self._woken_by(wake_from_anywhere):
                await woken
        finally:
            timer.cancel()
        self._close()

    def _close(self) -> None:
        """Decide with what there is."""
        with self._mutex:
            if not self._closed:
                late = redis.exceptions.TimeoutError("No answer in time")
                self.answers = [late if item is PENDING else item for item in self.answers]
                self._decide()
                self._closed = True

    def outcome(self) -> Any:
        """Return what the answers came to, or raise what ``fold`` raised."""
        if self._error is not None:
            raise self._error
        return self._outcome


class Rest:
    """A pause between two rounds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def wait(self) -> None:
        """Let the time pass."""
        time.sleep(self.seconds)

    async def await_(self) -> None:
        """Let the time pass, under asyncio."""
        await asyncio.sleep(self.seconds)
