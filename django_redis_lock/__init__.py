"""Distributed locks for Django and Celery on Redis or Valkey."""

from django_redis_lock.handler import lock, lock_many, locks
from django_redis_lock.primitives.group import LockGroup
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.audit import AuditEntry
from django_redis_lock.protocol.contention import Contention
from django_redis_lock.protocol.records import Holder, Waiter

__all__ = [
    "AuditEntry",
    "Contention",
    "Holder",
    "Lock",
    "LockGroup",
    "Waiter",
    "lock",
    "lock_many",
    "locks",
]
__version__ = "0.1.0"
