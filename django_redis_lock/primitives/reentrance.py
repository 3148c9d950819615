"""Which locks a thread, greenlet or asyncio task holds and may enter again."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import current_execution, forget_after_fork

if TYPE_CHECKING:
    from django_redis_lock.backends.base import BaseLockBackend

_Key = tuple[str, str, int]


class _Register:
    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the locks of the parent process."""
        self.mutex = threading.RLock()
        self.leases: weakref.WeakValueDictionary[_Key, Lease] = weakref.WeakValueDictionary()


_register = _Register()


def remember(lease: Lease, backend: BaseLockBackend) -> None:
    """Let the current thread, greenlet or task enter the lock again."""
    execution = current_execution()
    lease.execution = weakref.ref(execution)
    _register.leases[backend.alias, lease.name, id(execution)] = lease


def find_held(backend: BaseLockBackend, name: str) -> Lease | None:
    """Return the lease that the current thread, greenlet or task seems to hold."""
    return _register.leases.get((backend.alias, name, id(current_execution())))


def enter_again(lease: Lease) -> bool:
    """Enter a lock once more; return False where it is not the current execution's, or not held."""
    # The number by which it was found may be another execution's by now.
    mine = lease.execution is not None and lease.execution() is current_execution()
    with _register.mutex:
        if not mine or not lease.entries or lease.lost or lease.passed:
            return False
        lease.entries += 1
        return True


def leave(lease: Lease) -> bool:
    """Count one entry less; return whether it was the last, so that the lock is to be released."""
    with _register.mutex:
        if lease.entries > 1:
            lease.entries -= 1
            return False
        lease.entries = 0  # from here on nobody enters, even if the release fails
        return True


def forget(lease: Lease) -> None:
    """Let nobody enter the lock again."""
    with _register.mutex:
        lease.entries = 0
