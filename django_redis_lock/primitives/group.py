"""The handle with which a caller takes, keeps and releases several locks at once."""

from __future__ import annotations

from collections.abc import Iterator

from django_redis_lock.exceptions import LockNotAcquired, LockNotOwned
from django_redis_lock.primitives.holding import DEFAULT, Default
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.primitives.managed import Managed
from django_redis_lock.primitives.many import Group


class LockGroup(Group, Managed):
    """A handle for several locks, which are held all or none.

    A context manager and a decorator, as ``Lock`` is. ``held["name"]`` is the handle of one of
    them. Made by ``django_redis_lock.lock_many()``, which explains the arguments.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._names()}>"

    def __getitem__(self, name: str) -> Lock:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are taken."""
        return tuple(self._members)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing number of each lock, by name. Raises ``LockNotOwned``."""
        return {name: member.fence for name, member in self._members.items()}

    @property
    def remaining(self) -> float:
        """Seconds of lease left by the local monotonic clock, of the lock that has least.

        0.0 when one of them is not held; infinite for locks that never expire. No round trip.
        """
        return min(member.remaining for member in self._members.values())

    @property
    def lost(self) -> bool:
        """Whether one of the locks is known to be lost. No round trip."""
        return any(member.lost for member in self._members.values())

    def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | Default | None = DEFAULT
    ) -> bool:
        """Take all of the locks or none; return whether they were taken.

        ``blocking`` and ``blocking_timeout`` (seconds for all of them together, ``None`` without
        limit) stand in for what the handle was made with. Raises ``LockError`` when the handle
        holds one of the locks already, and ``LockUnavailable``.
        """
        return self.backend.run(self._acquire(self._first._until(blocking, blocking_timeout)))

    async def aacquire(
        self, blocking: bool | None = None, blocking_timeout: float | Default | None = DEFAULT
    ) -> bool:
        """Take all of the locks or none, as ``acquire`` does."""
        until = self._first._until(blocking, blocking_timeout)
        return await self.backend.arun(self._acquire(until))

    def release(self) -> None:
        """Give the locks up; the longest waiting gets each.

        Raises ``LockLost`` when one was lost meanwhile, and the others are released;
        ``LockNotOwned`` when none is held, and ``LockUnavailable``: then it goes on in the
        background, and can be called again.
        """
        self.backend.run(self._release())

    async def arelease(self) -> None:
        """Give the locks up, as ``release`` does."""
        await self.backend.arun(self._release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add seconds to each lease; with ``replace_ttl`` let all end in so many seconds from now.

        Returns True. Raises ``LockLost``, ``LockNotOwned``, ``LockUnavailable``, and ``LockError``
        for locks that never expire.
        """
        return self.backend.run(self._extend(additional_time, replace_ttl=replace_ttl))

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Lengthen the leases, as ``extend`` does."""
        return await self.backend.arun(self._extend(additional_time, replace_ttl=replace_ttl))

    def reacquire(self) -> bool:
        """Let the leases begin again with their whole length. Returns and raises as ``extend``."""
        return self.backend.run(self._extend(None, replace_ttl=True))

    async def areacquire(self) -> bool:
        """Let the leases begin again, as ``reacquire`` does."""
        return await self.backend.arun(self._extend(None, replace_ttl=True))

    def ensure_held(self) -> None:
        """Ask the server whether all are still held; raise ``LockLost`` when one is not.

        Raises ``LockNotOwned`` when one was not held at all, and ``LockUnavailable``.
        """
        self.backend.run(self.confirm(self._all_held()))

    async def aensure_held(self) -> None:
        """Ask the server, as ``ensure_held`` does."""
        await self.backend.arun(self.confirm(self._all_held()))

    def owned(self) -> bool:
        """Ask the server whether this handle holds all of the locks. Raises ``LockUnavailable``."""
        try:
            self.ensure_held()
        except LockNotOwned:
            return False
        return True

    async def aowned(self) -> bool:
        """Ask the server, as ``owned`` does."""
        try:
            await self.aensure_held()
        except LockNotOwned:
            return False
        return True

    def _not_acquired(self) -> LockNotAcquired:
        wait = self._first.blocking_timeout
        tried = f"within {wait:g} s" if self._first.blocking and wait else "at once"
        return LockNotAcquired(
            f"Locks {self._names()} could not be acquired {tried}; "
            f"another holder has {self._busy!r}.",
            name=self._busy,
        )
