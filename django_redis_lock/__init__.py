"""Distributed locks for Django and Celery on Redis or Valkey."""

from django_redis_lock.audit import AuditEntry
from django_redis_lock.group import LockGroup
from django_redis_lock.handler import lock, lock_many, locks
from django_redis_lock.lock import Lock
from django_redis_lock.records import Holder, Waiter

__all__ = ["AuditEntry", "Holder", "Lock", "LockGroup", "Waiter", "lock", "lock_many", "locks"]
__version__ = "0.1.0"
