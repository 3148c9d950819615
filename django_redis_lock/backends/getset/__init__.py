"""Locks without scripts, by SETNX and GETSET."""

from django_redis_lock.backends.getset.backend import GetSetLockBackend

__all__ = ["GetSetLockBackend"]
