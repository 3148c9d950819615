"""Whether the servers of the locks take writes: told before one tries to release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.redis.backend import RedisLockBackend

Setting = Callable[[str], str | None]
"""Reads a setting of the server; ``None`` where it does not tell."""


def unwritable_because(backend: BaseLockBackend) -> str:
    """Return what keeps the server from taking writes, such as ``"is a read-only replica: …"``.

    Empty for nothing, or nothing known. Costs one ``INFO``, and a ``CONFIG GET`` where that leaves
    a doubt. What an ACL denies is not seen here, nor what one of several servers refuses.
    """
    if not isinstance(backend, RedisLockBackend):
        return ""
    try:
        pools = backend.pools()
        if len(pools) != 1:
            return ""
        client = redis.Redis(connection_pool=pools[0])
        return _because(client.info(), lambda name: _setting(client, name))
    except (RedisError, OSError):  # INFO may be denied to the user of the locks
        return ""


def _setting(client: redis.Redis, name: str) -> str | None:
    try:
        return client.config_get(name).get(name)
    except redis.ResponseError:  # denied to the user of the locks
        return None


def _because(info: Mapping[str, Any], setting: Setting) -> str:
    if info.get("role") == "slave":
        if info.get("slave_read_only") != 0:
            return "is a read-only replica: nothing can be released there"
    elif why := _too_few_replicas(info, setting) or _can_not_save(info, setting):
        return why
    most = info.get("maxmemory", 0)
    full = 0 < most <= info.get("used_memory", 0)
    if full and info.get("maxmemory_policy") == "noeviction":
        return (
            f"is full (maxmemory {most} bytes): no new lock can be taken there; a forced release "
            f"still works"
        )
    return ""


def _too_few_replicas(info: Mapping[str, Any], setting: Setting) -> str:
    good = info.get("min_slaves_good_slaves")  # there where some are demanded
    if good is None:
        return ""
    demanded = setting("min-replicas-to-write")
    if good >= (1 if demanded is None else int(demanded)):
        return ""
    return (
        f"has {good} good replicas of the {demanded or 'number'} that min-replicas-to-write "
        f"demands: nothing can be released there"
    )


def _can_not_save(info: Mapping[str, Any], setting: Setting) -> str:
    if info.get("aof_enabled") and info.get("aof_last_write_status") == "err":
        return "can't write its append-only file: nothing can be released there"
    if info.get("rdb_last_bgsave_status") != "err":
        return ""
    stops, saves = setting("stop-writes-on-bgsave-error"), setting("save")
    if stops == "no" or saves == "":
        return ""
    known = stops is not None and saves is not None
    return "could not save to disk (rdb_last_bgsave_status:err): " + (
        "nothing can be released there" if known else "it may refuse to release"
    )
