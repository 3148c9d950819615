"""One lock as a handle holds it: its lease, and what the handle knows of it without asking."""

from __future__ import annotations

from collections.abc import Callable

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockError, LockNotOwned
from django_redis_lock.primitives.reentrance import forget, remember
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.protocol.records import token_id
from django_redis_lock.support.process import current_process


class Held:
    """The part of a handle that holds the lease of one lock."""

    name: str
    reentrant: bool
    after_commit: bool
    _find_backend: Callable[[], BaseLockBackend]
    _max_hold: float | None

    def _hold_nothing(self) -> None:
        self._lease: Lease | None = None
        self._backend: BaseLockBackend | None = None
        self._acquired_at = 0.0  # monotonic
        self._deferred = False  # released, but kept until a transaction ends

    @property
    def backend(self) -> BaseLockBackend:
        """The backend that stores the lock."""
        return self._backend or self._find_backend()

    @property
    def fence(self) -> int:
        """The fence of this hold, greater than that of every earlier holder.

        Raises ``LockNotOwned`` if the lock is not held.
        """
        return self._held().fence

    @property
    def token_id(self) -> str:
        """The digest that identifies this hold to others, as in ``Holder.token_id``.

        Raises ``LockNotOwned`` if the lock is not held.
        """
        return token_id(self._held().token.encode())

    @property
    def remaining(self) -> float:
        """Seconds left of the lease by the local monotonic clock; 0.0 if the lock is not held.

        Infinite for a lock that never expires. Makes no round trip.
        """
        lease = self._lease
        return 0.0 if lease is None or lease.lost or _inherited(lease) else lease.remaining

    @property
    def lost(self) -> bool:
        """Whether the lock is known to be lost: a renewal was refused, or the lease has expired.

        Makes no round trip.
        """
        lease = self._lease
        return lease is not None and (lease.lost or lease.passed)

    def _held(self) -> Lease:
        lease = self._lease
        if lease is None:
            raise self._not_owned("is not held by this handle")
        if _inherited(lease):
            pid = lease.process.pid
            raise self._not_owned(f"is held by the parent process {pid}, not by its forked child")
        return lease

    def _lease_to_release(self) -> Lease:
        lease = self._held()
        if self._deferred:
            raise self._not_owned("was released already, and is freed when the transaction ends")
        return lease

    def _lease_to_set(self) -> Lease:
        lease = self._held()
        if lease.given_up:
            raise self._not_owned("was released already, which is being retried in the background")
        return lease

    def _not_owned(self, why: str) -> LockNotOwned:
        return LockNotOwned(f"Lock {self.name!r} {why}.", name=self.name)

    def _vacate(self) -> None:
        """Make sure that acquiring overwrites nothing that is still held."""
        lease = self._lease
        if lease is None:
            return
        if not (_inherited(lease) or self.lost or lease.given_up):
            raise LockError(
                f"This handle already holds lock {self.name!r}, and keeps it. Create a handle for "
                f"each caller, or pass reentrant=True to let one caller enter it again.",
                name=self.name,
            )
        self._forget(lease)

    def _keep(self, lease: Lease, backend: BaseLockBackend) -> None:
        if self._max_hold is not None and lease.timeout is not None:
            lease.renew_until = lease.deadline - lease.timeout + self._max_hold
        self._renew(lease, backend)
        remember(lease, backend, reentrant=self.reentrant)
        self._lease, self._backend, self._deferred = lease, backend, False

    def _renew(self, lease: Lease, backend: BaseLockBackend) -> None:
        if lease.auto_renew or lease.verify_by is not None:
            renewer.add(lease, backend, self, renew=lease.auto_renew)

    def _forget(self, lease: Lease) -> None:
        forget(lease)
        renewer.discard(lease)
        self._lease = self._backend = None
        self._deferred = False


def _inherited(lease: Lease) -> bool:
    """Whether a parent process acquired it."""
    return lease.process is not current_process()
