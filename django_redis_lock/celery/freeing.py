"""Locks that nobody will release any more, freed in the background.

The parent of a worker serves all its children by one thread, which waits for no lock server. There
is one thread for each alias of LOCKS, so that a server which does not answer holds up nothing on
another one; it ends when all is freed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery.family import is_dead
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import locks

logger = logging.getLogger("django_redis_lock.celery")

RETRY_EVERY = 0.5
"""Seconds between tries where a server does not answer."""
MOST = 10_000
"""How many locks of one alias are kept in mind; the lease ends those beyond."""

Work = Callable[[BaseLockBackend], None]


def free(using: str, name: str, token_id: str) -> None:
    """Release a lock for its holder, who can't, as soon as the server can be asked.

    Nothing happens where that holder has it no more.
    """
    _freers.setdefault(using, _Freer(using)).add(lambda backend: _release(backend, name, token_id))


def free_dead(using: str) -> None:
    """Release what dead processes of this worker hold, by a listing of all locks."""
    _freers.setdefault(using, _Freer(using)).add(_release_all_dead)


def finish(seconds: float) -> None:
    """Return when all is freed that can be, or after some seconds; go on with nothing."""
    until = monotonic() + seconds
    for freer in _freers.values():
        freer.end()
    for freer in _freers.values():
        freer.join(until)
    _freers.clear()


def _release(backend: BaseLockBackend, name: str, token_id: str) -> None:
    why = "the process or message that it was held for is no more"
    holder = backend.free(name, token_id, reason=why)
    if holder is not None:
        logger.warning("Lock %r was freed, for %s can't release it", name, holder)


def _release_all_dead(backend: BaseLockBackend) -> None:
    for holder in list(backend.holders()):
        if is_dead(holder):
            _release(backend, holder.name, holder.token_id)


class _Freer:
    """What is to be freed on one alias, in the order in which it was said."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._work: deque[Work] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._full = False

    def add(self, work: Work) -> None:
        with self._changed:
            if len(self._work) >= MOST:
                if not self._full:
                    logger.warning("Too many locks of LOCKS[%r] are to be freed", self._using)
                self._full = True
                return
            self._work.append(work)
            if self._thread is None:
                name = f"django-redis-lock-free-{self._using}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Try no more than once from here on."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def join(self, until: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, until - monotonic()))

    def _run(self) -> None:
        told = False
        while (work := self._next()) is not None:
            try:
                work(locks[self._using])
            except LockUnavailable as error:
                if not told:
                    logger.warning("Locks of LOCKS[%r] can't be freed yet: %s", self._using, error)
                told = True
                self._put_off(work)
            except Exception as error:  # also of what a foreign message named
                logger.warning("A lock of LOCKS[%r] can't be freed: %s", self._using, error)

    def _put_off(self, work: Work) -> None:
        with self._changed:
            self._work.appendleft(work)
            if self._ended:
                self._work.clear()
            else:
                self._changed.wait(RETRY_EVERY)

    def _next(self) -> Work | None:
        with self._changed:
            if self._work:
                return self._work.popleft()
            self._thread, self._full = None, False
            return None


_freers: dict[str, _Freer] = {}
