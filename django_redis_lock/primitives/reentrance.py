"""The reentrant locks that each thread, greenlet or asyncio task holds."""

from __future__ import annotations

import threading
import weakref

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import current_execution, forget_after_fork

_Key = tuple[str, str, int]


class _Register:
    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        self.mutex = threading.RLock()
        self.leases: weakref.WeakValueDictionary[_Key, Lease] = weakref.WeakValueDictionary()


_register = _Register()


def remember(lease: Lease, backend: BaseLockBackend) -> None:
    """Let the current thread, greenlet or asyncio task enter the lock again."""
    execution = current_execution()
    lease.execution = weakref.ref(execution)
    _register.leases[backend.alias, lease.name, id(execution)] = lease


def find_held(backend: BaseLockBackend, name: str) -> Lease | None:
    """Return the lease that the current execution seems to hold; ``enter_again`` checks it."""
    return _register.leases.get((backend.alias, name, id(current_execution())))


def enter_again(lease: Lease) -> bool:
    """Enter a lock once more; return False unless the current execution holds it."""
    # The id by which the lease was found may belong to a later execution.
    mine = lease.execution is not None and lease.execution() is current_execution()
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
    with _register.mutex:
        lease.entries = 0
