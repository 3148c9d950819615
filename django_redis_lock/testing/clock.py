"""The clock of leases, moved by a test."""

from __future__ import annotations

import math

from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import LockError
from django_redis_lock.handler import locks
from django_redis_lock.support import clock
from django_redis_lock.testing.leases import renew_ahead


def advance_clock(seconds: float) -> None:
    """Let so many seconds pass for the locks in the memory of this process.

    Leases that end by then have ended, for ``held.remaining`` and ``held.lost`` as well; those that
    are renewed have been renewed in time. Waiters wake: a wait whose time is up ends, and a lock
    that has become free is acquired. The time of day stays, so ``Holder.acquired_at`` and
    ``held_for`` do not change. Raises ``LockError`` if a backend with a server is in use, because
    the server's clock can't be moved.
    """
    if isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise ValueError(f"seconds={seconds!r}: the clock goes forward, by some seconds.")
    used = locks.made()
    for backend in used:
        if not isinstance(backend, LocMemLockBackend | DummyLockBackend):
            raise LockError(
                f"LOCKS[{backend.alias!r}] is on a server, whose clock can't be moved. Use "
                f"expire_now(), or keep the locks of this test in memory."
            )
    renew_ahead(seconds)
    clock.move(seconds)
    for backend in used:
        backend.hub.nudge()
