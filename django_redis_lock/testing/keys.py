"""Deletes what a backend keeps beside its locks."""

from __future__ import annotations

import logging

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redlock import RedlockLockBackend
from django_redis_lock.backends.servers.base import ServersLockBackend
from django_redis_lock.backends.servers.sharding import TAGS
from django_redis_lock.transport.packing import Packing

logger = logging.getLogger("django_redis_lock")


def delete_keys(backend: BaseLockBackend, *, locks_stay: bool) -> None:
    """Delete the audit of a backend and, unless locks stay held, the last fence and the like.

    Their keys are known, so no server is searched.
    """
    if isinstance(backend, LocMemLockBackend):
        if locks_stay:
            backend.clear_history()
        else:
            backend.clear()
        return
    parts = backend.servers if isinstance(backend, RedlockLockBackend) else [backend]
    for part in parts:
        if isinstance(part, ServersLockBackend):
            try:
                _delete(part, locks_stay=locks_stay)
            except (RedisError, OSError) as error:
                logger.debug("The keys of a test are left: %s", error)


def _delete(backend: ServersLockBackend, *, locks_stay: bool) -> None:
    prefix, urls = backend.key_prefix, backend.location.urls
    if not urls:
        client = redis.Redis(connection_pool=backend.pool)
        more = [] if locks_stay else [f"{prefix}-server"]  # that of a quorum
        client.delete(*_fixed(Packing(prefix), locks_stay=locks_stay), *more)
        return
    cluster = RedisCluster.from_url(urls[0])
    try:
        for tag in TAGS:
            cluster.delete(*_fixed(Packing(prefix, tag), locks_stay=locks_stay))
    finally:
        cluster.close()


def _fixed(packing: Packing, *, locks_stay: bool) -> list[str]:
    others = [packing.index_key, packing.fence_key, packing.heard_key]
    return [packing.audit_key, *([] if locks_stay else others)]
