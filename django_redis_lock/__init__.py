"""Distributed locks for Django and Celery on Redis or Valkey."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_redis_lock.handler import lock, lock_many, locks, semaphore
    from django_redis_lock.primitives.group import LockGroup
    from django_redis_lock.primitives.lock import Lock
    from django_redis_lock.protocol.records import AuditEntry, Holder, Limit, Waiter
else:
    from django_redis_lock.support import imported_when_used

    __getattr__ = imported_when_used(
        __name__,
        {
            **dict.fromkeys(["lock", "lock_many", "locks", "semaphore"], f"{__name__}.handler"),
            "Lock": f"{__name__}.primitives.lock",
            "LockGroup": f"{__name__}.primitives.group",
            **dict.fromkeys(
                ["AuditEntry", "Holder", "Limit", "Waiter"], f"{__name__}.protocol.records"
            ),
        },
    )

__all__ = [
    "AuditEntry",
    "Holder",
    "Limit",
    "Lock",
    "LockGroup",
    "Waiter",
    "lock",
    "lock_many",
    "locks",
    "semaphore",
]
__version__ = "1.0.0"
