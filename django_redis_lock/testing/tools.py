"""What tests do to locks, and see of them."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any, Self
from unittest.mock import patch

from django.dispatch import Signal

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.renewal import LONGEST_CALL, renewer
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.protocol import calls, conversation
from django_redis_lock.protocol import lease as leases
from django_redis_lock.protocol.audit import FORCE_RELEASED, taken
from django_redis_lock.protocol.calls import Breaking, Call, Listen, Post
from django_redis_lock.protocol.lease import Lease, Request, token_id, write_record
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import check_name, check_timeout
from django_redis_lock.support.process import current_process

GONE_WITHIN = 5.0
"""Seconds for a server to drop a lock whose lease was set to a millisecond."""

made: weakref.WeakSet[Lease] = weakref.WeakSet() if leases.made is None else leases.made
"""The leases of this process."""
leases.made = made  # from here on


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
    record = write_record(
        auto_renew=renew, lease=lease_s, metadata={"held": "by held_by_another()"}
    )
    request = Request(check_name(name), os.urandom(16).hex(), lease_s, record, auto_renew=renew)
    lease = backend.run(conversation.acquire(None, request, None))
    if lease is None:
        raise LockNotAcquired(f"Lock {name!r} can't go to another: it is held already.", name=name)
    lease.reported = True  # no holder in this process is notified of a loss
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
    with _found_lost(holder) as lease:
        if lease is None:
            _, value, *_ = backend.run(calls.ask(calls.Inspect([name])))
            token = bytes(value or b"").partition(b" ")[0].decode(errors="replace")
        else:
            token = lease.token
        until = monotonic() + GONE_WITHIN
        while (now := backend.holder(name)) is not None and now.token_id == holder.token_id:
            backend.run(calls.ask(calls.Renew([(name, token, 1)])))
            if monotonic() > until:
                raise LockError(f"The lease of lock {name!r} could not be ended.", name=name)
            time.sleep(0.002)
        if lease is not None:
            lease.deadline = min(lease.deadline, monotonic())
            lease.version += 1


def lose(name: str, *, using: str = DEFAULT_ALIAS) -> None:
    """Take a held lock from its holder, as an operator does on another machine.

    The lock is free, or goes to a waiter. A holder in this process whose lease is renewed finds out
    at once: ``held.lost`` is true and the signal ``lock_lost`` has been sent. One with a fixed
    lease finds out when it asks or releases, as always. Raises ``LockError`` if the lock is not
    held.
    """
    backend = _backend(using)
    holder = _holder(backend, name, "be lost")
    with _found_lost(holder):
        take(backend, holder, "lose()")


def take(backend: BaseLockBackend, holder: Holder, reason: str) -> None:
    """Take a lock from its holder without the signal that this process would send."""
    entry = taken(FORCE_RELEASED, holder, "", reason)
    cap = backend.operators.audit_entries
    call = calls.ForceRelease(holder.name, holder.token_id, entry, cap)
    backend.run(calls.ask(call))


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


@contextmanager
def unavailable(using: str | None = None) -> Iterator[None]:
    """Let every operation in this process raise ``LockUnavailable`` during the block.

    ``using`` limits it to an alias. Nothing is sent and nothing is retried, so the errors come at
    once, on a server as with locmem and dummy. Renewals fail, too; a lock whose lease ends
    meanwhile is lost. At the end, releases that failed are sent.
    """
    with ExitStack() as stack:
        for step in (Call, Listen, Post):
            for method in ("do", "ado"):
                failing = _failing(getattr(step, method), using)
                stack.enter_context(patch.object(step, method, failing))
        yield
    renewer.at_exit()


def _failing(do: Callable[..., Any], using: str | None) -> Callable[..., Any]:
    def fail(step: Any, port: Any) -> Any:
        alias = getattr(port, "alias", None)
        if alias is None or using not in (None, alias):  # a part of a call has no alias
            return do(step, port)
        call = step.call if isinstance(step, Post) else step
        error = LockUnavailable(
            f"LOCKS[{alias!r}] is not available: the test said unavailable().", name=call.lock_name
        )
        error.passing = False  # a retry would meet the same
        error.undone = isinstance(call, Breaking)  # nothing was sent
        raise error

    return fail


class LockRecorder:
    """Notes what happens to locks during a block, from the signals of the package.

    Each list has the names of the locks, in the order of the events. What the tools of
    ``django_redis_lock.testing`` do to a lock themselves is not in it.
    """

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.acquired: list[str] = []
        self.not_acquired: list[str] = []
        self.released: list[str] = []
        self.detached: list[str] = []
        self.lost: list[str] = []
        self.force_released: list[str] = []
        self.freed: list[str] = []
        self.unavailable: list[str] = []
        """The names for which the server was unavailable; empty for all or several locks."""
        self.events: list[tuple[str, str]] = []
        """All of these in their order, as ``("acquired", name)``."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for event in vars(self):
            signal = getattr(signals, f"lock_{event}", None)
            if signal is not None:
                self._note(event, signal)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        """Forget what has been noted."""
        for noted in vars(self).values():
            if isinstance(noted, list):
                noted.clear()

    def _note(self, event: str, signal: Signal) -> None:
        names: list[str] = getattr(self, event)

        @signals.never_blocks
        def note(name: str, **kwargs: Any) -> None:
            names.append(name)
            self.events.append((event, name))

        signal.connect(note, weak=False)
        self._stack.callback(signal.disconnect, note)


# Leases and their renewal: what the renewer has to itself, and no other module here uses.


def lease_of(hold: str) -> Lease | None:
    """Return the lease of this process whose lock has a ``token_id``."""
    mine = current_process()
    for lease in [*made]:
        if lease.process is mine and token_id(lease.token.encode()) == hold:
            return lease
    return None


@contextmanager
def _found_lost(holder: Holder) -> Iterator[Lease | None]:
    """End a hold during the block; if this process renews its lease, it finds out at the end."""
    lease = lease_of(holder.token_id)
    entry = None if lease is None else renewer.entries.pop(lease.token, None)
    yield lease
    if lease is not None and entry is not None:
        entry.due = monotonic() + 60.0  # this thread does it
        renewer.entries[lease.token] = entry
        entry.server.renew([entry], monotonic() + LONGEST_CALL)


def abandon(lease: Lease) -> None:
    """Have this process neither renew, nor enter, nor miss a lock that a test has left."""
    renewer.discard(lease)
    lease.lost = lease.reported = True


def finish_releases(backends: Collection[BaseLockBackend]) -> None:
    """Send what is still to be sent to some backends, and drop what does not arrive."""
    renewer.at_exit()
    for server in [*renewer.servers.values()]:
        if server.backend in backends:
            server.withdrawals.clear()
