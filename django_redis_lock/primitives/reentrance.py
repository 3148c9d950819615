"""The locks that each thread, greenlet or asyncio task holds, and entering one again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import current_execution, forget_after_fork

_Key = tuple[str, str, int | str]
"""Alias, name, and the execution of a reentrant lease; of any other, its token."""


class _Register:
    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        self.mutex = threading.RLock()
        self.leases: weakref.WeakValueDictionary[_Key, Lease] = weakref.WeakValueDictionary()


_register = _Register()


def remember(lease: Lease, backend: BaseLockBackend, *, reentrant: bool) -> None:
    """Note that the current thread, greenlet or asyncio task holds a lock."""
    execution = current_execution()
    lease.using = backend.alias
    lease.execution = weakref.ref(execution)
    key = id(execution) if reentrant else lease.token
    _register.leases[backend.alias, lease.name, key] = lease


def find_held(backend: BaseLockBackend, name: str) -> Lease | None:
    """Return the lease that the current execution seems to hold; ``enter_again`` checks it."""
    return _register.leases.get((backend.alias, name, id(current_execution())))


def held_here(name: str) -> Iterator[Lease]:
    """Yield the leases of the current execution on locks of this name, as far as is known here."""
    execution = current_execution()
    for reference in _register.leases.valuerefs():
        lease = reference()
        if lease is None or lease.name != name or _owner(lease) is not execution:
            continue
        if not (lease.lost or lease.passed or lease.given_up):
            yield lease


def enter_again(lease: Lease) -> bool:
    """Enter a lock once more; return False unless the current execution holds it."""
    # The id by which the lease was found may belong to a later execution.
    mine = _owner(lease) is current_execution()
    with _register.mutex:
        if not mine or not lease.entries or lease.lost or lease.passed:
            return False
        lease.entries += 1
        return True


def leave(lease: Lease) -> bool:
    """Leave a lock; return whether that was the last entry, so that the lock must be released."""
    with _register.mutex:
        if lease.entries > 1:
            lease.entries -= 1
            return False
        lease.entries = 0  # nothing enters it any more, even if the release fails
        return True


def forget(lease: Lease) -> None:
    """Note that a lease is held no longer."""
    with _register.mutex:
        lease.entries = 0
        lease.execution = None


def _owner(lease: Lease) -> object | None:
    execution = lease.execution
    return None if execution is None else execution()
