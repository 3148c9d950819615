"""What the renewer keeps for a server, and when each item is due."""

from __future__ import annotations

import logging
import math
import weakref
from time import monotonic
from typing import Any

from django_redis_lock.protocol.calls import Release
from django_redis_lock.protocol.lease import Lease, milliseconds

logger = logging.getLogger("django_redis_lock")
BATCH = 500
"""How many leases one call renews: the server does nothing else while it runs a script."""
VERIFY_AFTER = 0.25
"""Seconds after which the server is asked whether a lock that was handed off is still held."""
MAX_HOLD_PASSED = "it was held for as long as its max_hold allows"
"""Why a lock is lost that is no longer renewed."""


class Kept:
    """A lease to renew or to verify, and when that is due (monotonic)."""

    __slots__ = ("due", "last", "lease", "lock", "ms", "name", "period", "soon", "token", "tried")

    def __init__(self, lease: Lease, lock: Any, *, renew: bool) -> None:
        self.lease = weakref.ref(lease)
        self.lock = weakref.ref(lock)
        self.name = lease.name
        self.token = lease.token
        self.tried = False  # and not answered yet
        self.last = False  # this was the last renewal: the lease ends at its ``renew_until``
        if renew and lease.timeout is not None:
            self.ms, self.period = milliseconds(lease.timeout), lease.timeout / 3
        else:
            self.ms, self.period = 0, math.inf  # only to be verified
        self.schedule(lease)

    def schedule(self, lease: Lease) -> None:
        """Set ``due``, and ``soon``: from when on it can join a call for other leases."""
        now = monotonic()
        pause = min(self.period, (lease.deadline - now) / 3)
        if self.last:
            self.soon = self.due = lease.deadline
        elif lease.verify_by is not None and (not self.ms or pause > VERIFY_AFTER):
            self.soon = now + VERIFY_AFTER
            self.due = now + 1.2 * VERIFY_AFTER
        else:
            self.due = now + pause
            self.soon = self.due - pause / 4

    def wanted(self, lease: Lease) -> int:
        """Return how much of the lease to ask for (ms); 0 only looks at it."""
        if lease.renew_until == math.inf:
            return self.ms
        return min(self.ms, max(0, milliseconds(lease.renew_until - monotonic())))

    def hurry(self, seconds: float) -> None:
        """Be due in time for a lease that may end in so many seconds."""
        if self.ms:
            self.due = min(self.due, monotonic() + seconds / 3)
            self.soon = min(self.soon, self.due)

    def end(self, lease: Lease) -> float:
        """Return when the lock counts as lost if the server does not answer."""
        return lease.deadline if lease.verify_by is None else min(lease.deadline, lease.verify_by)

    def postpone(self, lease: Lease, now: float) -> None:
        """Try again later, but several times before the end."""
        left = max(0.05, (self.end(lease) - now) / 4)
        self.soon = self.due = now + min(1.0, self.period / 4, left)


class Withdrawal:
    """A release that did not reach the server, and when to send it again (monotonic)."""

    __slots__ = ("call", "due", "until")

    def __init__(self, call: Release, until: float) -> None:
        self.call = call
        self.until = until
        self.postpone()

    def postpone(self) -> None:
        self.due = monotonic() + 0.5


def mark_lost(lease: Lease, reason: str) -> bool:
    """Mark and log a lease as lost; return whether it was not known yet."""
    lease.lost = True
    if lease.reported:
        return False
    lease.reported = True
    logger.error("Lock %r was lost while it was held: %s", lease.name, reason)
    return True
