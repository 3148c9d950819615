"""Counts what happens to locks, away from the callers.

A caller only notes what happened, which takes a fraction of a microsecond. A thread adds up the
notes every two seconds, so a process that is killed loses those of two seconds.
"""

from __future__ import annotations

import atexit
import logging
import math
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django_redis_lock.backends.watching import Watcher
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import Count
from django_redis_lock.protocol.contention import Counts, letter_of
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import run
from django_redis_lock.support.clock import monotonic
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")
EVERY = 2.0
"""Seconds after the first note until all are worked off."""
MANY = 1000
"""Notes that are added up before the thread does it, to bound the memory they take."""
EXIT = 1.0
"""Seconds for which the end of the process waits for the last counts."""


class Tally(ABC):
    """Notes of this process, and the thread that works them off."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self.after_fork()
        forget_after_fork(self)
        _tallies.add(self)
        _send_before_celery_ends()

    def after_fork(self) -> None:
        """Leave the notes to the parent process; a thread is started when needed."""
        self._mutex = threading.RLock()
        self._notes: deque[Any] = deque()
        self._due: float | None = None  # monotonic
        self._sending = False
        self._watcher = Watcher(self._thread_name, self._mutex, self._next_due, self._work)

    def note(self, *note: Any) -> None:
        """Note an event, in the form that the subclass adds up."""
        self._notes.append(note)
        if self._due is None or len(self._notes) > MANY:
            self._rouse()

    def hurry(self) -> None:
        """Have the thread work off everything now."""
        with self._mutex:
            if self._due is not None:
                self._due = 0.0
                with suppress(RuntimeError):  # the process is ending
                    self._watcher.wake(0.0)

    @property
    def is_sending(self) -> bool:
        """Whether there is something that was not worked off since ``hurry``."""
        with self._mutex:
            return self._sending or self._due == 0.0

    @abstractmethod
    def add_up(self) -> None:
        """Turn the notes into counts. The caller holds the mutex."""

    def send(self) -> None:  # noqa: B027 - adding up may be all there is to do
        """Take the counts to where they belong; called by the thread."""

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
            self._sending, self._due = True, None
        try:
            with self._mutex:
                self.add_up()
            self.send()
        finally:
            self._sending = False


class ServerTally(Tally):
    """The contention of the locks of a backend, for its server.

    A note is the name of a lock, the event, one of those in ``protocol.contention``, and its
    seconds. Counts that can't be sent are dropped: the server may have added them, and a second
    time they would be wrong.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        super().__init__(f"django-redis-lock-contention-{backend.alias}")

    def after_fork(self) -> None:
        """Leave the counts to the parent process, too."""
        super().after_fork()
        self._counts: dict[str, Counts] = {}
        self._failed = False

    def add_up(self) -> None:
        group_of: dict[str, str] = {}
        for name, what, seconds in self.taken():
            group = group_of.get(name)
            if group is None:
                group = group_of[name] = self._backend.operators.group(name)
            counts = self._counts.setdefault(group, {})
            letter = letter_of(what, seconds)
            counts[letter] = counts.get(letter, 0) + 1

    def send(self) -> None:
        try:
            with self._mutex:
                counts, self._counts = self._counts, {}
            if counts:
                run(self._backend, ask(Count(counts)))
            self._failed = False
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Log a failure, unless the last sending has failed as well."""
        if not self._failed:
            using, known = self._backend.alias, isinstance(error, LockUnavailable)
            text = "The contention of LOCKS[%r] is not counted for now: %s"
            logger.warning(text, using, error, exc_info=None if known else error)
        self._failed = True


def send_now(tallies: Iterable[Tally]) -> None:
    """Send what was counted, and wait for that, but no longer than ``EXIT``."""
    deadline = monotonic() + EXIT
    waiting = list(tallies)
    for tally in waiting:
        tally.hurry()
    while monotonic() < deadline and any(tally.is_sending for tally in waiting):
        time.sleep(0.005)


_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


@atexit.register
def _send_before_exit(**kwargs: Any) -> None:
    send_now(_tallies)


def _send_before_celery_ends() -> None:
    """Send the counts of a pool process of Celery before it ends, which is without ``atexit``."""
    if "celery.signals" in sys.modules:
        sys.modules["celery.signals"].worker_process_shutdown.connect(_send_before_exit, weak=False)
