"""Locks on a majority of independent servers."""

from django_redis_lock.backends.redlock.backend import RedlockLockBackend

__all__ = ["RedlockLockBackend"]
