"""Locks on the nodes of a cluster."""

from django_redis_lock.backends.cluster.backend import RedisClusterLockBackend

__all__ = ["RedisClusterLockBackend"]
