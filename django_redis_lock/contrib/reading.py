"""Reads the held locks of all aliases for gauges, at once and within a time limit."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

from django.core.signals import setting_changed
from django.db import connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.contrib.held import Held, read_held
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")

KEPT_FOR = 1.0
"""Seconds for which all that read share what was read."""
PATIENCE = 3.0
"""Seconds that a reading waits for the servers, all of which are read at once."""


class _Thread(threading.local):
    reads = False


this_thread = _Thread()
"""Says whether this thread reads for gauges, whose failures are not counted as operations."""


class _Look:
    """One reading of a backend, by a thread of its own."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._begun = monotonic()
        self._held: Future[Held] = Future()
        self._late = False
        name = f"django-redis-lock-gauges-{using}"
        threading.Thread(target=self._take, name=name, daemon=True).start()

    @property
    def recent(self) -> bool:
        return not self._held.done() or monotonic() - self._begun < KEPT_FOR

    def result(self, patience: float) -> Held | None:
        """Return what was read; ``None`` if it failed or takes too long."""
        done, _ = wait([self._held], 0.0 if self._late else patience)
        self._late = not done  # the next ones do not wait for it again
        return self._held.result() if done and self._held.exception() is None else None

    def _take(self) -> None:
        this_thread.reads = True
        try:
            self._held.set_result(read_held(locks[self._using]))
        except Exception as error:
            if isinstance(error, LockError | InvalidLockBackend):
                logger.info("LOCKS[%r] has no gauges now: %s", self._using, error)
            else:
                logger.exception("The held locks of LOCKS[%r] could not be counted", self._using)
            self._held.set_exception(error)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread


class Reader:
    """Reads every backend. A server that does not answer delays only the first who asks."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)
        setting_changed.connect(self._settings_changed)

    def after_fork(self) -> None:
        """Start over: the threads that read are the parent's."""
        self._mutex = threading.Lock()
        self._looks: dict[str, _Look] = {}

    def read(self) -> list[tuple[BaseLockBackend, Held | None]]:
        """Return each valid backend with what is held, ``None`` if that is not known in time."""
        until = monotonic() + PATIENCE
        found = []
        for using, look in self._recent_looks().items():
            try:
                backend = locks[using]
            except InvalidLockBackend:
                continue  # as the system checks say
            found.append((backend, look.result(max(0.0, until - monotonic()))))
        return found

    def _recent_looks(self) -> dict[str, _Look]:
        try:
            aliases = list(locks)
        except InvalidLockBackend:
            return {}  # as the system checks say
        with self._mutex:
            for using in aliases:
                look = self._looks.get(using)
                if look is None or not look.recent:
                    self._looks[using] = _Look(using)
            return {using: self._looks[using] for using in aliases}

    def _settings_changed(self, *, setting: str, **kwargs: Any) -> None:
        if setting == "LOCKS":
            self.after_fork()


reader = Reader()
"""The reader of this process, shared by all kinds of metrics."""
