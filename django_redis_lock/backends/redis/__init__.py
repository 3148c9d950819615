"""Locks on one Redis or Valkey server."""

from django_redis_lock.backends.redis.backend import RedisLockBackend

__all__ = ["RedisLockBackend"]
