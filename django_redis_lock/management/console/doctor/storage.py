"""The examinations of eviction and persistence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.targets import Target
from django_redis_lock.management.console.durations import duration

NO_EVICTION = "CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own."


def examine_eviction(client: Any, target: Target) -> Iterator[Finding]:
    """Can a held lock be evicted, and is there memory left?"""
    info = client.info("memory")
    policy, most = str(info.get("maxmemory_policy", "")), int(info.get("maxmemory", 0))
    evicted = int(client.info("stats").get("evicted_keys", 0))
    if policy == "noeviction" and evicted:
        yield Finding(
            WARN,
            "eviction",
            f"noeviction now, but {evicted} keys were thrown out since the server started",
            "Locks can have been among them; CONFIG RESETSTAT begins to count anew.",
        )
    elif policy == "noeviction":
        yield Finding(OK, "eviction", "noeviction: no lock is thrown out")
    elif not policy:
        yield Finding(WARN, "eviction", "the server does not tell", "See its maxmemory-policy.")
    elif evicted:
        yield Finding(
            FAIL,
            "eviction",
            f"{policy}: {evicted} keys were thrown out already, and a held lock can be the next",
            NO_EVICTION,
        )
    else:
        # Locks expire, so volatile-* policies can evict them too.
        yield Finding(
            FAIL if most else WARN,
            "eviction",
            f"{policy}: a held lock can be thrown out when memory is short"
            + ("" if most else "; there is no maxmemory yet"),
            NO_EVICTION,
        )
    used = int(info.get("used_memory", 0))
    if most and used > 0.9 * most:
        yield Finding(
            WARN,
            "memory",
            f"{used / most:.0%} of maxmemory is used",
            "Without room no lock can be taken: raise maxmemory, or free some.",
        )


def examine_persistence(client: Any, target: Target) -> Iterator[Finding]:
    """Do locks survive a restart?"""
    info = client.info("persistence")
    broken = [
        key
        for key in ("aof_last_write_status", "rdb_last_bgsave_status")
        if info.get(key, "ok") != "ok"
    ]
    if broken:
        yield Finding(
            FAIL,
            "persistence",
            f"{broken[0]} is {info[broken[0]]}: the server refuses to write, or soon will",
            "See the server's log: the disk may be full, or not writable.",
        )
    elif int(info.get("aof_enabled", 0)):
        yield _fsync(client)
    elif target.rejoin_delay:
        yield Finding(
            WARN,
            "persistence",
            "no append-only file: after a restart it does not vote for "
            f"{duration(target.rejoin_delay)} (REJOIN_DELAY), so that no lock is given twice",
            "CONFIG SET appendonly yes keeps what it knew, and the last fence with it.",
        )
    elif target.member:
        yield Finding(
            FAIL,
            "persistence",
            "no append-only file, and REJOIN_DELAY is 0: a restart forgets its votes, so that two "
            "can hold one lock",
            "CONFIG SET appendonly yes, or give OPTIONS['REJOIN_DELAY'] the longest lease in use.",
        )
    else:
        yield Finding(
            WARN,
            "persistence",
            "no append-only file: a restart forgets the locks that are held",
            "CONFIG SET appendonly yes; or live with it where locks only save work, and use "
            "fences where they keep data right.",
        )


def _fsync(client: Any) -> Finding:
    """Return what the append-only file keeps, depending on ``appendfsync``."""
    try:
        fsync = str(client.config_get("appendfsync").get("appendfsync", ""))
    except (NoConnection, TimedOut):
        raise
    except RedisError:  # denied, or a hosted server without CONFIG
        fsync = ""
    kept = "append-only file: locks outlive a restart"
    if fsync == "always":
        return Finding(OK, "persistence", f"{kept} and a power loss (appendfsync always)")
    if fsync == "no":
        return Finding(
            WARN,
            "persistence",
            f"{kept}; a power loss can lose the last half minute or so (appendfsync no)",
            "CONFIG SET appendfsync everysec, which can lose the last second, or always.",
        )
    lost = (
        "the last second (appendfsync everysec)"
        if fsync == "everysec"
        else "the last second, or more if appendfsync is no"
    )
    return Finding(OK, "persistence", f"{kept}; a power loss can lose {lost}")
