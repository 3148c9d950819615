"""Tells whether a backend's server takes writes, before an operator tries to release a lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.redis.backend import RedisLockBackend

Reason = str | Promise
"""A text that is translated when it is shown; ``""`` for none."""


def unwritable_because(backend: BaseLockBackend) -> Reason:
    """Return why the server refuses writes, such as ``"is a read-only replica: ..."``, or ``""``.

    Sends one ``INFO``, and a ``CONFIG GET`` if that is not conclusive. It does not see what an ACL
    denies, nor backends with several servers.
    """
    if not isinstance(backend, RedisLockBackend):
        return ""
    try:
        pools = backend.servers.pools()
        if len(pools) != 1:
            return ""
        client = redis.Redis(connection_pool=pools[0])
        return _because(client.info(), client)
    except (RedisError, OSError):  # an ACL may deny INFO
        return ""


def _setting(client: redis.Redis, name: str) -> str | None:
    try:
        return client.config_get(name).get(name)
    except redis.ResponseError:  # denied by an ACL
        return None


def _because(info: Mapping[str, Any], client: redis.Redis) -> Reason:
    if info.get("role") == "slave":
        if info.get("slave_read_only") != 0:
            return _("is a read-only replica: nothing can be released there")
    elif why := _too_few_replicas(info, client) or _cannot_save(info, client):
        return why
    most = info.get("maxmemory", 0)
    full = 0 < most <= info.get("used_memory", 0)
    if full and info.get("maxmemory_policy") == "noeviction":
        text = _(
            "is full (maxmemory {most} bytes): no new lock can be taken there; a forced release "
            "still works"
        )
        return format_lazy(text, most=most)
    return ""


def _too_few_replicas(info: Mapping[str, Any], client: redis.Redis) -> Reason:
    good = info.get("min_slaves_good_slaves")  # present if some are required
    if good is None:
        return ""
    demanded = _setting(client, "min-replicas-to-write")
    if good >= (1 if demanded is None else int(demanded)):
        return ""
    text = _(
        "has too few good replicas ({good} of the {demanded} that min-replicas-to-write demands): "
        "nothing can be released there"
    )
    return format_lazy(text, good=good, demanded=demanded or _("number"))


def _cannot_save(info: Mapping[str, Any], client: redis.Redis) -> Reason:
    if info.get("aof_enabled") and info.get("aof_last_write_status") == "err":
        return _("can't write its append-only file: nothing can be released there")
    if info.get("rdb_last_bgsave_status") != "err":
        return ""
    stops, saves = _setting(client, "stop-writes-on-bgsave-error"), _setting(client, "save")
    if stops == "no" or saves == "":
        return ""
    if stops is None or saves is None:
        return _("could not save to disk (rdb_last_bgsave_status:err): it may refuse to release")
    return _("could not save to disk (rdb_last_bgsave_status:err): nothing can be released there")
