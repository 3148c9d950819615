"""The handle of several locks, which are acquired and released together.

They are acquired one after another in the order of their names, each through its queue. So callers
never deadlock, and no waiter is overtaken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Self

from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockNotAcquired, LockUnavailable
from django_redis_lock.primitives.exits import released_here
from django_redis_lock.primitives.handle import Handle
from django_redis_lock.primitives.held import abandon, finish, renew_in_time, waiting
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.lease import milliseconds
from django_redis_lock.support.arguments import Sharing

MOST_NAMES = 1000  # the most locks of one handle


class LockGroup(Handle):
    """A handle of several locks, all of which are held or none.

    It is a context manager and a decorator, as ``Lock`` is. ``held["name"]`` is the handle of one
    lock. ``django_redis_lock.lock_many()`` creates it, and documents the arguments.
    """

    _busy: Lock  # which could not be acquired

    def __init__(self, locks: Sequence[Lock]) -> None:
        self._by_name = {lock.name: lock for lock in sorted(locks, key=lambda one: one.name)}
        self._by_given = {lock.given: self._by_name[lock.name] for lock in locks if lock.given}
        if wrong := [one for one in locks if self._by_name[one.name].sharing != one.sharing]:
            name = wrong[0].name
            raise ValueError(f"{name!r} is passed twice, in different ways: pass it once.")
        super().__init__(
            ", ".join(self._by_name),
            blocking=locks[0].blocking,
            blocking_timeout=locks[0]._blocking_timeout,
        )
        self.on_unavailable = locks[0].on_unavailable

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self._by_name))}>"

    def __getitem__(self, name: str) -> Lock:
        return self._by_name[name] if name in self._by_name else self._by_given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return tuple(self._by_name)

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock, by name. Raises ``LockNotOwned``."""
        return {name: lock.fence for name, lock in self._by_name.items()}

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock of the lease that expires first; 0.0 if one is not held.

        Infinite for locks that never expire. Makes no round trip.
        """
        return min(lock.remaining for lock in self._locks())

    @property
    def lost(self) -> bool:
        """Whether one of the locks is known to be lost. Makes no round trip."""
        return any(lock.lost for lock in self._locks())

    def _fresh(self) -> Self:
        return type(self)([lock._fresh() for lock in self._locks()])

    def _locks(self) -> list[Lock]:
        return list(self._by_name.values())

    def _not_acquired(self) -> Steps[LockNotAcquired]:
        return self._busy._not_acquired()

    def _acquire(self, until: float | None) -> Steps[bool]:
        attempt = self._occupy()
        try:
            return (yield from self._take(until))
        finally:
            del attempt

    def _take(self, until: float | None) -> Steps[bool]:
        locks = self._locks()
        retaken = [lock for lock in locks if waiting and released_here(lock) is not None]
        for lock in locks:
            if not (lock.deferred and lock in retaken):
                lock.vacate()
        try:
            taken = yield from self._obtain(locks, retaken, until)
        except BaseException as error:
            silent = isinstance(error, LockUnavailable) and error.silent
            if not isinstance(error, GeneratorExit):
                yield from self._undo(retaken, later=silent)
            raise
        if not taken:
            yield from self._undo(retaken, later=False)
        return taken

    def _obtain(self, locks: list[Lock], retaken: list[Lock], until: float | None) -> Steps[bool]:
        for lock in retaken:
            yield from lock._acquire(None)
        others = [lock for lock in locks if lock not in retaken]
        while True:
            if not (yield from self._take_in_turn(others, until)):
                return False
            if (yield from self._begin_leases(others)):
                return True
            # One was lost during the wait for another.
            yield from finish([lock for lock in others if lock.lease is not None])

    def _take_in_turn(self, locks: list[Lock], until: float | None) -> Steps[bool]:
        """Acquire one lock after another, and renew those that are held meanwhile."""
        for lock in locks:
            lock.waited = False
            if not (yield from lock._acquire(until)):
                self._busy = lock
                return False
            lease = lock.held_lease()
            lease.renew_for(None, monotonic())  # until all are held
            if until is not None and not lease.auto_renew and lease.timeout is not None:
                renewer.add(lease, self.backend, lock)
        return True

    def _begin_leases(self, locks: list[Lock]) -> Steps[bool]:
        """Let all leases begin now, if there was a wait; return False if one is lost."""
        leases = [lock.held_lease() for lock in locks]
        for lock, lease in zip(locks, leases, strict=True):
            lease.renew_for(lock.max_hold, monotonic())
            if not lease.auto_renew:
                renewer.discard(lease)
        if not any(lock.waited for lock in locks):
            return True
        full = [-1 if lease.timeout is None else milliseconds(lease.timeout) for lease in leases]
        return not (yield from renew_in_time(leases, full))

    def _undo(self, retaken: list[Lock], *, later: bool) -> Steps[None]:
        """Release what was acquired, ``later`` in the background; what was retaken waits again."""
        for lock in retaken:
            if lock.lease is not None and not lock.deferred:
                yield from lock._release()
        taken = [lock for lock in self._locks() if lock.lease and lock not in retaken]
        if later:
            abandon(taken)
        else:
            yield from finish(taken)


def kinds(
    names: Iterable[str],
    shared: bool | Iterable[str],
    limit: int | Mapping[str, int] | None,
    max_waiters: int | None,
) -> list[tuple[str, Sharing]]:
    """Return the names of a group, each with how it is shared."""
    if isinstance(shared, str):
        raise TypeError(f"shared={shared!r} must be a list of names, or True for all names.")
    readers: Iterable[str] = ()
    permits: Mapping[str, int] = {}
    if isinstance(shared, Iterable):
        readers, shared = shared, False
    if isinstance(limit, Mapping):
        permits, limit = limit, None
    if shared and limit is not None:
        raise ValueError("shared conflicts with limit: pass only one of them.")
    if None in permits.values():
        raise ValueError(f"limit={permits!r} must map each name to a whole number.")
    found = [
        *((name, Sharing(limit is not None or shared, limit, max_waiters)) for name in names),
        *((name, Sharing(True, None, max_waiters)) for name in readers),
        *((name, Sharing(True, most, max_waiters)) for name, most in permits.items()),
    ]
    if not found:
        raise ValueError("lock_many() needs at least one lock name.")
    if (number := len({name for name, _ in found})) > MOST_NAMES:
        raise ValueError(
            f"lock_many() got {number} names; the maximum is {MOST_NAMES}. "
            f"Use one coarser lock instead."
        )
    return found
