"""One call to several servers at once, and when enough of them have answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import redis

from django_redis_lock.backends.redlock.wires import Letter
from django_redis_lock.protocol.calls import Step
from django_redis_lock.support.bells import AsyncBell, Bell


class Pending:
    """The type of ``PENDING``, which stands for an answer that has not come yet."""


PENDING = Pending()


class Round(Step):
    """The step that waits for the answers to a call that was sent to all servers.

    ``fold`` gets the answers so far, one per server, with exceptions and ``PENDING`` among them. It
    returns their outcome, or ``PENDING`` while missing answers could change it; it may raise. After
    ``timeout`` seconds a missing answer counts as an exception.
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
        """Note the answer of a server. It changes nothing once the outcome is known."""
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
        """Have ``wake`` called when the outcome is known; return False if it is already."""
        with self._mutex:
            self._wake = wake
            return not self._closed

    def do(self, port: Any) -> Any:
        """Block until the outcome is known, and return it."""
        bell = Bell()
        if self._woken_by(bell.ring):
            bell.wait(self._until)
        return self._close()

    async def ado(self, port: Any) -> Any:
        """Wait until the outcome is known, and return it."""
        bell = AsyncBell()
        if self._woken_by(bell.ring):
            await bell.wait(self._until)
        return self._close()

    def _close(self) -> Any:
        with self._mutex:
            if not self._closed:
                late = redis.exceptions.TimeoutError("No answer in time")
                self.answers = [late if item is PENDING else item for item in self.answers]
                self._decide()
                self._closed = True
        if self._error is not None:
            raise self._error
        return self._outcome
