"""The examinations of a server's resources: memory, disk, connections and output buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.management.console.doctor.targets import Finding, Target, fail, ok, warn
from django_redis_lock.management.console.durations import length

NO_EVICTION = "CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own."
NEAR = 0.8
"""The share of ``maxclients`` that is worth a warning."""
FEW = 100
"""Few clients: a process that waits for locks has at least two connections."""
SMALL = 1_000_000
"""A small output buffer in bytes: some thousand grants at once."""
BUFFERS = "client-output-buffer-limit"
NORMAL_BUFFERS = f"CONFIG SET {BUFFERS} 'pubsub 33554432 8388608 60'."


def examine_eviction(client: Any, target: Target) -> Iterator[Finding]:
    """Can a held lock be evicted, and is there memory left?"""
    info = client.info("memory")
    policy, most = str(info.get("maxmemory_policy", "")), int(info.get("maxmemory", 0))
    evicted = int(client.info("stats").get("evicted_keys", 0))
    if policy == "noeviction" and evicted:
        yield warn(
            "eviction",
            f"noeviction now, but {evicted} keys were evicted since the server started",
            "They may include locks. CONFIG RESETSTAT resets the count.",
        )
    elif policy == "noeviction":
        yield ok("eviction", "noeviction: locks are not evicted")
    elif not policy:
        yield warn("eviction", "the server does not report its policy", "Check maxmemory-policy.")
    elif evicted:
        found = f"{policy}: {evicted} keys were evicted already, and held locks can be next"
        yield fail("eviction", found, NO_EVICTION)
    else:  # locks expire, so volatile-* policies can evict them too
        found = f"{policy}: held locks can be evicted when memory runs out"
        if most:
            yield fail("eviction", found, NO_EVICTION)
        else:
            yield warn("eviction", f"{found}; maxmemory is not set", NO_EVICTION)
    used = int(info.get("used_memory", 0))
    if most and used > 0.9 * most:
        yield warn(
            "memory",
            f"{used / most:.0%} of maxmemory is used",
            "A full server grants no locks: raise maxmemory, or delete keys.",
        )


def examine_persistence(client: Any, target: Target) -> Iterator[Finding]:
    """Do locks survive a restart?"""
    info = client.info("persistence")
    for key in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(key, "ok") != "ok":
            yield fail(
                "persistence",
                f"{key} is {info[key]}: the server refuses writes, or soon will",
                "Check the server's log: the disk may be full or read-only.",
            )
            return
    if int(info.get("aof_enabled", 0)):
        yield _fsync(client)
    elif target.rejoin_delay:
        yield warn(
            "persistence",
            "no append-only file: after a restart it does not vote for "
            f"{length(target.rejoin_delay)} (REJOIN_DELAY), so that no lock has two holders",
            "CONFIG SET appendonly yes keeps its votes and the last fence.",
        )
    elif target.member:
        yield fail(
            "persistence",
            "no append-only file, and REJOIN_DELAY is 0: a restart loses its votes, so a lock can "
            "have two holders",
            "CONFIG SET appendonly yes, or set OPTIONS['REJOIN_DELAY'] to the longest lease.",
        )
    else:
        yield warn(
            "persistence",
            "no append-only file: a restart loses the held locks",
            "CONFIG SET appendonly yes. Without it, use locks only to save work, or check fences.",
        )


def _fsync(client: Any) -> Finding:
    """Return what the append-only file keeps, depending on ``appendfsync``."""
    try:
        fsync = str(client.config_get("appendfsync").get("appendfsync", ""))
    except (NoConnection, TimedOut):
        raise
    except RedisError:  # denied, or a hosted server without CONFIG
        fsync = ""
    kept = "append-only file: locks survive a restart"
    if fsync == "always":
        return ok("persistence", f"{kept} and a power loss (appendfsync always)")
    if fsync == "no":
        return warn(
            "persistence",
            f"{kept}; a power loss can lose about the last 30 seconds (appendfsync no)",
            "CONFIG SET appendfsync everysec, which can lose the last second, or always.",
        )
    lost = "(appendfsync everysec)" if fsync == "everysec" else "or more with appendfsync no"
    return ok("persistence", f"{kept}; a power loss can lose the last second {lost}")


def examine_clients(client: Any, target: Target) -> Iterator[Finding]:
    """Is there room for more connections?"""
    info = client.info("clients")
    connected, most = int(info["connected_clients"]), int(info.get("maxclients", 0))
    most = most or int(client.config_get("maxclients").get("maxclients", 0))
    rejected = int(client.info("stats").get("rejected_connections", 0))
    found = f"{connected} of {most} connections (maxclients)"
    more = f"CONFIG SET maxclients {max(10_000, 2 * most)}, with a ulimit -n that allows it"
    if connected >= NEAR * most:
        found += ": new connections will soon be refused"
        yield warn("clients", found, f"{more}; CLIENT LIST shows who is connected.")
    elif rejected:
        found += f", and {rejected} were refused since the server started"
        yield warn("clients", found, f"{more}; CONFIG RESETSTAT resets the count.")
    elif most < FEW:
        found += ": few, as each process needs one for its calls and one to wait"
        yield warn("clients", found, f"{more}.")
    else:
        yield ok("clients", found)


def examine_buffers(client: Any, target: Target) -> Iterator[Finding]:
    """How much may be buffered for a process that waits for grants?"""
    if target.wait != "queue":
        return
    words = str(client.config_get(BUFFERS).get(BUFFERS, "")).split()
    if "pubsub" not in words:
        return
    hard, soft, seconds = map(int, words[words.index("pubsub") + 1 :][:3])
    limits = [limit for limit in (hard, soft) if limit]
    if not limits:
        yield warn(
            "buffers",
            f"no limit ({BUFFERS} pubsub): a subscriber that hangs can exhaust the server's memory",
            NORMAL_BUFFERS,
        )
    elif min(limits) < SMALL:
        yield warn(
            "buffers",
            f"only {min(limits):,} bytes ({BUFFERS} pubsub): a process with many waiters is "
            "disconnected when many locks are released at once",
            NORMAL_BUFFERS,
        )
    else:
        sizes = [f"{hard:,} bytes"] * bool(hard) + [f"{soft:,} bytes for {seconds} s"] * bool(soft)
        yield ok("buffers", f"up to {' and '.join(sizes)} per process that waits")
