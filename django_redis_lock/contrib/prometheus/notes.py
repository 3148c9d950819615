"""Notes of what happened to locks, which are counted away from the callers.

A caller only notes what happened, which takes a fraction of a microsecond. A thread counts the
notes every two seconds, so a process that is killed loses those of two seconds.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

from django_redis_lock.backends.watching import Watcher
from django_redis_lock.support.process import forget_after_fork

EVERY = 2.0
"""Seconds after the first note until all are counted."""
MANY = 1000
"""Notes that are counted before the thread does it, to bound the memory they take."""


class Notes(ABC):
    """Notes of this process, and the thread that counts them."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self.after_fork()
        forget_after_fork(self)
        atexit.register(self.add_up_now)
        if "celery.signals" in sys.modules:  # its pool processes end without ``atexit``
            ending = sys.modules["celery.signals"].worker_process_shutdown
            ending.connect(lambda **kwargs: self.add_up_now(), weak=False)

    def after_fork(self) -> None:
        """Leave the notes to the parent process; a thread is started when needed."""
        self._mutex = threading.RLock()
        self._notes: deque[Any] = deque()
        self._due: float | None = None  # monotonic
        self._watcher = Watcher(self._thread_name, self._mutex, self._next_due, self._work)

    def note(self, *note: Any) -> None:
        """Note an event, in the form that the subclass counts."""
        self._notes.append(note)
        if self._due is None or len(self._notes) > MANY:
            self._rouse()

    @abstractmethod
    def add_up(self) -> None:
        """Count the notes. The caller holds the mutex."""

    def add_up_now(self) -> None:
        """Count the notes in this thread."""
        with self._mutex:
            self.add_up()

    def taken(self) -> list[Any]:
        """Return the notes and forget them. The caller holds the mutex."""
        take = self._notes.popleft
        return [take() for _ in range(len(self._notes))]

    def _rouse(self) -> None:
        with self._mutex:
            if len(self._notes) > MANY:
                self.add_up()
            if self._due is None:
                due = monotonic() + EVERY
                with suppress(RuntimeError):  # there can be no thread now
                    self._watcher.wake(due)
                    self._due = due  # last: if this is interrupted, the next note tries again

    def _next_due(self, woken: bool) -> float | None:
        if self._due is None:
            return math.inf if woken else None
        return self._due

    def _work(self) -> None:
        with self._mutex:
            self._due = None
            self.add_up()
