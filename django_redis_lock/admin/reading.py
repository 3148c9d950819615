"""What the backends say of the locks that are held, as objects that the admin can list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.records import Holder
from django_redis_lock.text import visible, without_passwords

ERRORS = (LockError, InvalidLockBackend)
"""What asking a backend can raise."""


@dataclass(frozen=True)
class Problem:
    """A backend that could not be asked, and why, ready to be shown."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        """Return what is to be said of an error."""
        return cls(visible(using), visible(without_passwords(str(error))))


@dataclass
class Reading:
    """The locks that are held, and the backends that did not answer."""

    rows: list[HeldLock] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def aliases() -> list[str]:
    """Return the aliases of LOCKS, or none where LOCKS is wrong."""
    try:
        return list(locks)
    except InvalidLockBackend:
        return []


def read_all() -> Reading:
    """Ask every backend; one that does not answer does not hide the others."""
    reading = Reading()
    try:
        configured = list(locks)
    except InvalidLockBackend as error:
        reading.problems.append(Problem.of("LOCKS", error))
        return reading
    for using in configured:
        try:
            backend = locks[using]
            found = list(rows(backend.holders(), backend.timeout))
        except ERRORS as error:
            reading.problems.append(Problem.of(using, error))
        else:
            reading.rows += found
    return reading


def read_one(lock: HeldLock) -> HeldLock:
    """Ask for the holder of one lock. Raises ``LockError`` and ``InvalidLockBackend``."""
    backend = locks[lock.using]
    holder = backend.holder(lock.name)
    return next(rows([holder], backend.timeout)) if holder else lock


def rows(holders: Iterable[Holder], lease: float | None) -> Iterator[HeldLock]:
    """Yield the objects of holders; ``lease`` is the backend's ``TIMEOUT``."""
    for holder in holders:
        row = HeldLock.of(holder.using, holder.name)
        row.holder = holder
        row.overdue = _is_overdue(holder, lease)
        yield row


def _is_overdue(holder: Holder, lease: float | None) -> bool:
    """Return whether a holder has needed renewals, as a stuck one does.

    The server knows how much of a lease is left, not how long it was. It was the backend's,
    unless more is left than that has; a renewal comes when a third has passed, so then it was
    half as much again at the most.
    """
    if holder.held_for is None or holder.ttl is None or not holder.auto_renew:
        return False
    if lease is None or holder.ttl > lease:
        lease = 1.5 * holder.ttl
    return holder.held_for > lease
