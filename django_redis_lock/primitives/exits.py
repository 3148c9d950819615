"""Exits from holds that wait until a database transaction has ended.

Before the commit the server is asked whether the locks are still held. Django only reports commits,
and forgets an ``on_commit`` callback when its savepoint is rolled back. So the methods that end a
transaction are wrapped, on each connection for which an exit waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, connections

from django_redis_lock.exceptions import LockError, LockLost, LockUnavailable
from django_redis_lock.primitives import held as holding
from django_redis_lock.primitives.held import Held, Hold, Leave
from django_redis_lock.protocol.calls import Steps
from django_redis_lock.protocol.lease import Lease, Request
from django_redis_lock.support.django_private import savepoint_in_test
from django_redis_lock.support.process import current_process

if TYPE_CHECKING:
    from django_redis_lock.primitives.lock import Lock

logger = logging.getLogger("django_redis_lock")
_WRAPPED_AS = "_django_redis_lock_wrapped"


def defer(held: Sequence[Held], leave: Leave, databases: Sequence[Any], *, ends: bool) -> bool:
    """Let an exit wait for the transactions on some connections, as earlier ones of its holds do.

    Returns False after a loss, without the app in ``INSTALLED_APPS``, or if all handles of the lock
    have ``after_commit=False``. A hold ends once; locked again, it is detached if either says so.
    """
    leases = [each.held_lease() for each in held]
    if not apps.ready or any(lease.lost for lease in leases):
        return False
    wanted = any(lease.after_commit for lease in leases)
    if not apps.is_installed("django_redis_lock"):
        if wanted:
            _warn_not_installed()
        return False
    if not wanted:
        logger.warning(
            "Released lock %s before the transaction on %s ended, so the next holder may not see "
            "what it wrote. Remove after_commit=False.",
            ", ".join(repr(each.name) for each in held),
            ", ".join(repr(connection.alias) for connection in databases),
        )
        return False
    _wait(held, leave, databases, ends=ends)
    return True


def _wait(held: Sequence[Held], leave: Leave, databases: Sequence[Any], *, ends: bool) -> None:
    before, holds = earlier(held), [(one, one.held_lease()) for one in held]
    ending = [each for each in before if each.ends]
    if leave is holding.finish:
        waits = {lease for each in ending for lease in each.leases}
        holds = [hold for hold in holds if hold[1] not in waits]
    elif ends:
        for each in ending:
            each.holds = [hold for hold in each.holds if hold not in holds]
    for each in (*before, _Exit(holds, leave, ends=ends)):
        for connection in databases:
            wrapped: _Wrapped = connection.__dict__.get(_WRAPPED_AS) or _Wrapped(connection)
            wrapped.add(each)
    for one in held:
        one.deferred |= ends


@cache
def _warn_not_installed() -> None:  # once for the whole process
    logger.warning(
        "Released a lock before the transaction ended, so the next holder may not see what it "
        "wrote. Add 'django_redis_lock' to INSTALLED_APPS."
    )


def earlier(held: Sequence[Held]) -> list[_Exit]:
    """Return the exits from these holds that wait."""
    leases = {each.held_lease() for each in held}
    return [each for each in _waiting_here() if leases & each.leases]


def released_here(handle: Held) -> Held | None:
    """Return a hold of a lock, the handle's first, that waits for this thread's transaction."""
    released = [one for each in _waiting_here() for one in each.held() if one.deferred]
    found = [one for one in released if one.name == handle.name and _same_locks(one, handle)]
    return handle if handle in found else next(iter(found), None)


def _same_locks(one: Held, other: Held) -> bool:
    mine, theirs = one.backend, other.backend
    same_keys = mine.key_prefix == theirs.key_prefix and mine.databases() & theirs.databases()
    return mine is theirs or bool(same_keys)


def retake(handle: Lock, former: Held) -> Steps[None]:
    """Let a handle go on with a hold whose exit waits, no weaker. Raises as ``acquire`` does."""
    lease, backend = former.held_lease(), former.backend
    if lease.shared and not handle.sharing.shared:
        raise handle.upgrade_refused()
    if handle is not former:
        handle.vacate()
    lease.rely(required=former.on_unavailable == "raise")
    wanted = handle.make_request(backend)
    yield from holding.set_leases([former], lambda lease: _left_ms(lease, wanted))
    lease.strengthen(wanted, handle.max_hold)
    for each in earlier([former]):  # without the handle's release, it is only confirmed
        others = [hold for hold in each.holds if hold[1] is not lease]
        each.holds = [*others, (handle, lease)] if each.ends else others
    acquired_by = former.signalled
    former.let_go(lease)
    handle.hold(lease, backend, None if acquired_by is handle else acquired_by)


def _left_ms(lease: Lease, wanted: Request) -> int:
    """Return the lease that is wanted, if it is longer than what is left; 0 only confirms it."""
    if wanted.timeout is None:
        return 0 if lease.timeout is None else -1
    return wanted.lease_ms if wanted.timeout > lease.remaining else 0


def _waiting_here() -> list[_Exit]:
    wrapped = [each.__dict__.get(_WRAPPED_AS) for each in connections.all(initialized_only=True)]
    return [*dict.fromkeys(exit for each in wrapped if each for exit in each.exits)]


class _Exit:
    """An exit from holds that waits for the transactions of some connections."""

    def __init__(self, holds: list[Hold], leave: Leave, *, ends: bool) -> None:
        self.connections: set[_Wrapped] = set()
        self.holds, self.leave, self.ends = holds, leave, ends
        holding.waiting.add(self)

    @property
    def leases(self) -> set[Lease]:
        return {lease for _, lease in self.holds}

    def held(self) -> list[Held]:
        mine = current_process()
        return [each for each, lease in self.holds if each.lease is lease and lease.process is mine]


class _Wrapped:
    """Wraps the methods of a connection that end a transaction, for the life of the connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.exits: list[_Exit] = []
        self._savepoint: str | None = None  # stands for the transaction in a TestCase
        self._original: Any = SimpleNamespace()
        wrapped = self.commit, self.rollback, self.close, self.set_autocommit
        for method in (*wrapped, self.savepoint_commit, self.savepoint_rollback):
            setattr(self._original, method.__name__, getattr(connection, method.__name__))
            setattr(connection, method.__name__, method)
        setattr(connection, _WRAPPED_AS, self)

    def add(self, each: _Exit) -> None:
        self._savepoint = savepoint_in_test(self._connection)
        if self not in each.connections:
            each.connections.add(self)
            self.exits.append(each)

    def commit(self) -> None:
        self._confirm(self.rollback)
        self._original.commit()
        self._ended()

    def rollback(self) -> None:
        self._original.rollback()
        self._ended()

    def close(self) -> None:
        try:
            self._original.close()
        finally:
            # Django does not close SQLite's databases in memory.
            if self._connection.connection is None or self._connection.closed_in_transaction:
                self._ended()

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        self._original.set_autocommit(autocommit, *args, **kwargs)
        if autocommit:  # then no transaction is open
            self._ended()

    def savepoint_commit(self, sid: str | None) -> None:
        if sid is None or sid != self._savepoint or not self.exits:
            self._original.savepoint_commit(sid)
            return
        self._confirm(lambda: self.savepoint_rollback(sid))
        self._original.savepoint_commit(sid)
        self._ended()

    def savepoint_rollback(self, sid: str | None) -> None:
        self._original.savepoint_rollback(sid)
        if sid is not None and sid == self._savepoint:
            self._ended()

    def _confirm(self, roll_back: Callable[[], None]) -> None:
        """Roll back and raise ``LockLost`` or ``LockUnavailable`` unless all locks are held."""
        try:
            asked: set[Lease] = set()
            for each in self.exits:
                held = [one for one in each.held() if one.held_lease() not in asked]
                asked |= each.leases
                if held:
                    _confirm(held)
        except BaseException:
            try:
                roll_back()
            except Error:  # the connection is unusable
                self._connection.close()
            raise

    def _ended(self) -> None:
        while self.exits:
            each = self.exits.pop(0)
            each.connections.discard(self)
            held = [one for one in each.held() if one.deferred or not each.ends]
            if held and not each.connections:
                held[0].backend.run(_carry_out(each.leave, held))


def _confirm(held: Sequence[Held]) -> None:
    try:
        held[0].backend.run(holding.confirm(held))
    except LockUnavailable as error:
        if any(one.held_lease().required or one.on_unavailable == "raise" for one in held):
            raise
        logger.warning("Committed a transaction that may have lost %s: %s", held, error)


def _carry_out(leave: Leave, held: Sequence[Held]) -> Steps[None]:
    try:
        yield from leave(held)
    except LockError as error:
        if not isinstance(error, LockLost):  # which was logged when it was found
            names = ", ".join(repr(each.name) for each in held)
            logger.warning("Could not pass on lock %s after the transaction: %s", names, error)
        yield from holding.finish([each for each in held if each.deferred])
