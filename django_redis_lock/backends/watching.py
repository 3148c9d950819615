"""A background thread that wakes when something is due, and never keeps a caller waiting.

Callers touch nothing but bare locks here. An exception that a signal handler raises inside the
Python code of ``threading`` would leave a condition locked for ever, or mark a running thread as
ended.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any


class Watcher:
    """Calls ``work`` in a thread when something is due.

    ``next_due`` returns when that is (monotonic), or ``None`` to let the thread end. It is told
    whether the thread was woken. It is called with the mutex held, as are ``wake`` and
    ``hand_off``.

    Before ``work`` makes a call that may hang, it hands the watch off to another thread. A thread
    that finds another one watching when its work is done ends.
    """

    IDLE = 5.0
    """Seconds after which a thread with nothing to do asks whether to end."""

    def __init__(
        self,
        name: str,
        mutex: AbstractContextManager[Any],
        next_due: Callable[[bool], float | None],
        work: Callable[[], None],
    ) -> None:
        self._name = name
        self._mutex = mutex
        self._next_due = next_due
        self._work = work
        self._thread: threading.Thread | None = None
        self._bell = threading.Lock()  # the thread acquires it to sleep until it is released
        self._wakes_at = 0.0

    def wake(self, due: float) -> None:
        """Have a thread awake at a moment (monotonic). Raises as ``hand_off`` does."""
        if self._thread is None:
            self.hand_off()
        elif due < self._wakes_at:
            if self._bell.locked():
                self._bell.release()
            self._wakes_at = due

    def hand_off(self) -> None:
        """Let a new thread watch. Raises ``RuntimeError`` if none can be started.

        With Python 3.12 that is so as soon as the process begins to end.
        """
        self._thread = None
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        # ``Thread.start`` is Python code in which a signal handler may raise, so it runs in a
        # thread that gets no signals. If this one is interrupted before the next line, ``_run``
        # makes up for it.
        _thread.start_new_thread(self._begin, (thread,))
        self._thread = thread

    def _begin(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:  # the process has begun to end: this thread watches itself
            self._forget(thread)
            self._run()
        except BaseException:
            self._forget(thread)  # so that the next caller tries again
            raise

    def _forget(self, thread: threading.Thread) -> None:
        with self._mutex:
            if self._thread is thread:
                self._thread = None

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while True:
                with self._mutex:
                    if self._thread not in (None, me):
                        return
                    self._thread = me
                if not self._sleep():
                    return
                self._work()
        finally:
            self._forget(me)

    def _sleep(self) -> bool:
        """Sleep until something is due; return False if the thread is to end."""
        woken = True
        while True:
            with self._mutex:
                due, now = self._next_due(woken), monotonic()
                if due is None:
                    self._thread = None
                    return False
                if due <= now:
                    return True
                # If the lease that it woke for was released, sleep on until that would have been
                # due. Then short holds wake this thread now and then, rather than each time.
                early = self._wakes_at if self._wakes_at > now else due
                self._wakes_at = min(now + self.IDLE, due, early)
            woken = self._bell.acquire(timeout=self._wakes_at - now)
