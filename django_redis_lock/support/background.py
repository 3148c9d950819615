"""A thread that works in the background while there is something to do."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from time import monotonic

from django_redis_lock.support.process import Bell, start_thread

IDLE = 5.0
"""Seconds after which a thread with nothing to do ends."""


class Background:
    """Calls ``work`` in a thread of its own, while it has something to do.

    Callers use nothing but bare locks. An exception that a signal handler raises in the Python code
    of ``threading`` would leave a condition locked for ever, or mark a running thread as ended.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self.runs = False
        self.wakes_at = math.inf
        """When (monotonic) the thread wakes by itself; infinite while it is awake, or ended."""
        self._wanted_at = 0.0  # when it was last asked to be awake
        self._bell = Bell()
        self._mutex = threading.RLock()  # a signal handler may call while its thread has it
        self._at_work = threading.Lock()  # which the thread holds

    def work(self) -> float:
        """Do what is due; return when (monotonic) to go on, infinity if there is nothing to do."""
        raise NotImplementedError

    def ended(self) -> None:
        """Note that the thread ends."""

    def wake(self, due: float) -> None:
        """Have the thread awake at a moment (monotonic).

        Raises ``RuntimeError`` if none can be started. With Python 3.12 that is so as soon as the
        process begins to end.
        """
        self._wanted_at = due
        with self._mutex:
            if not self.runs:
                start_thread(self._begin)
                # If a signal handler raises here, a second thread is started, and ends at once.
                self.runs = True
        self._bell.ring()

    def _begin(self) -> None:
        # ``Thread.start`` is Python code in which a signal handler may raise, so it runs in a
        # thread that gets no signals.
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the process has begun to end: this thread has to do
            self._run()

    def _run(self) -> None:
        if not self._at_work.acquire(blocking=False):
            return
        try:
            self._work_on()
        finally:
            self.wakes_at = math.inf
            with self._mutex:
                self.runs = False
                self._at_work.release()
                self.ended()
        if self.work() < math.inf:  # something was added while it ended
            with suppress(RuntimeError):
                self.wake(0.0)

    def _work_on(self) -> None:
        """Work until there was nothing to do for a while."""
        woken = True
        while True:
            self.wakes_at = math.inf  # so that whoever adds something from here on rings the bell
            due, now = self.work(), monotonic()
            if due == math.inf and not woken:
                return
            if due > now:
                # If what it woke for is done, it sleeps on until that would have been due. Then
                # short holds wake it now and then, rather than each time.
                early = self._wanted_at if self._wanted_at > now else due
                self.wakes_at = min(now + IDLE, due, early)
                self._bell.wait(self.wakes_at)
                woken = monotonic() < self.wakes_at
