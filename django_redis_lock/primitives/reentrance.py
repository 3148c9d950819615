"""The locks that each thread, greenlet or asyncio task holds, and entering one again."""

from __future__ import annotations

import threading
import weakref

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import current_execution, forget_after_fork

_Key = tuple[str, int, str, bool]
"""Name, id of the execution, alias, and whether it may enter again."""


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
    lease.execution = weakref.ref(execution)
    _register.leases[lease.name, id(execution), backend.alias, reentrant] = lease


def find_held(backend: BaseLockBackend, name: str) -> Lease | None:
    """Return the lease that the current execution seems to hold; ``enter_again`` checks it."""
    return _register.leases.get((name, id(current_execution()), backend.alias, True))


def holds(backend: BaseLockBackend, name: str) -> bool:
    """Whether the current execution holds a lock, as far as is known here."""
    place = name, id(current_execution()), backend.alias
    found = (_register.leases.get((*place, reentrant)) for reentrant in (True, False))
    return any(lease is not None and _is_held_here(lease) for lease in found)


def held_under_any_alias(name: str) -> list[Lease]:
    """Return the leases of the current execution on locks of this name, as far as is known here."""
    leases = (reference() for reference in _register.leases.valuerefs())
    return [
        lease
        for lease in leases
        if lease is not None and lease.name == name and _is_held_here(lease)
    ]


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


def _is_held_here(lease: Lease) -> bool:
    if _owner(lease) is not current_execution():
        return False
    return not (lease.lost or lease.passed or lease.given_up)


def _owner(lease: Lease) -> object | None:
    execution = lease.execution
    return None if execution is None else execution()
