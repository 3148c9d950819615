"""Locks that another holder has, and locks that their holders lose."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.protocol import calls, conversation
from django_redis_lock.protocol.audit import FORCE_RELEASED, taken
from django_redis_lock.protocol.lease import Request, milliseconds
from django_redis_lock.protocol.records import Holder, write_record
from django_redis_lock.support.arguments import check_name, check_timeout
from django_redis_lock.testing.leases import lease_of, renew_now, stop_renewing

GONE_WITHIN = 5.0
"""Seconds for a server to drop a lock whose lease was set to a millisecond."""


@contextmanager
def held_by_another(
    name: str, *, timeout: float | None = None, using: str = DEFAULT_ALIAS
) -> Iterator[None]:
    """Let another holder have a lock during the block.

    It excludes the test's own thread as well, and locks that are ``reentrant`` there. Its lease is
    renewed until the end of the block, or with ``timeout`` a fixed one of so many seconds. Waiters
    get the lock at the end. Raises ``LockNotAcquired`` if the lock is held already.
    """
    backend = _backend(using)
    if check_timeout(timeout) is None:
        lease_s, renew = backend.timeout, backend.timeout is not None
    else:
        lease_s, renew = timeout, False
    lease_ms = None if lease_s is None else milliseconds(lease_s)
    record = write_record(
        auto_renew=renew, lease_ms=lease_ms, metadata={"held": "by held_by_another()"}
    )
    request = Request(check_name(name), os.urandom(16).hex(), lease_s, record, auto_renew=renew)
    lease = backend.run(conversation.acquire(backend.hub, request, None))
    if lease is None:
        raise LockNotAcquired(f"Lock {name!r} can't go to another: it is held already.", name=name)
    lease.reported = True  # no holder in this process would be told of a loss
    if renew:
        renewer.add(lease, backend, lease)
    try:
        yield
    finally:
        renewer.discard(lease)
        try:
            freed = backend.run(conversation.release(lease))
        except LockUnavailable:
            release = calls.Release(name, lease.token, patient=False)
            renewer.withdraw(release, backend, lease.longest)
        else:
            if freed:
                backend.freed(name)


def expire_now(name: str, *, using: str = DEFAULT_ALIAS) -> None:
    """End the lease of a held lock, as if its time had passed without a renewal.

    The lock is free, or goes to a waiter. A holder in this process finds ``held.lost`` true; if its
    lease was to be renewed, the signal ``lock_lost`` has been sent. Raises ``LockError`` if the
    lock is not held.
    """
    backend = _backend(using)
    holder = _holder(backend, name, "expire")
    lease = lease_of(holder.token_id)
    renewal = stop_renewing(lease)
    if lease is None:
        _, value, *_ = backend.run(conversation.ask(calls.Inspect([name])))
        token = bytes(value or b"").partition(b" ")[0].decode(errors="replace")
    else:
        token = lease.token
    until = time.monotonic() + GONE_WITHIN
    while (now := backend.holder(name)) is not None and now.token_id == holder.token_id:
        backend.run(conversation.ask(calls.Renew([(name, token, 1)])))
        if time.monotonic() > until:
            raise LockError(f"The lease of lock {name!r} could not be ended.", name=name)
        time.sleep(0.002)
    if lease is not None:
        lease.deadline = min(lease.deadline, monotonic())
        lease.version += 1
        if renewal is not None:
            renew_now(lease, renewal)


def lose(name: str, *, using: str = DEFAULT_ALIAS) -> None:
    """Take a held lock from its holder, as an operator does on another machine.

    The lock is free, or goes to a waiter. A holder in this process whose lease is renewed finds out
    at once: ``held.lost`` is true and the signal ``lock_lost`` has been sent. One with a fixed
    lease finds out when it asks or releases, as always. Raises ``LockError`` if the lock is not
    held.
    """
    backend = _backend(using)
    holder = _holder(backend, name, "be lost")
    take(backend, holder, "lose()")
    lease = lease_of(holder.token_id)
    renewal = stop_renewing(lease)
    if lease is not None and renewal is not None:
        renew_now(lease, renewal)


def take(backend: BaseLockBackend, holder: Holder, reason: str) -> None:
    """Take a lock from its holder without the signal that this process would send."""
    entry = taken(FORCE_RELEASED, holder, "", reason)
    cap = backend.operators.audit_entries
    call = calls.ForceRelease(holder.name, holder.token_id, entry, cap)
    backend.run(conversation.ask(call))


def _backend(using: str) -> BaseLockBackend:
    backend = locks[using]
    if isinstance(backend, DummyLockBackend):
        raise LockError(
            f"LOCKS[{using!r}] is a DummyLockBackend, which excludes nobody and remembers nothing. "
            f"Use a LocMemLockBackend in this test."
        )
    return backend


def _holder(backend: BaseLockBackend, name: str, what: str) -> Holder:
    holder = backend.holder(name)
    if holder is None:
        raise LockError(f"Lock {name!r} is not held, so it can't {what}.", name=name)
    return holder
