"""The examinations of a Redis or Valkey server, or of each node of a cluster."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError

from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.connections import master_of
from django_redis_lock.console.durations import duration
from django_redis_lock.console.findings import FAIL, OK, WARN, Finding
from django_redis_lock.console.permissions import examine_permissions
from django_redis_lock.sharding import SLOTS
from django_redis_lock.text import without_passwords

ROUND_TRIPS = 21
SLOW = 0.010
"""Seconds of a round trip from which on it is worth a warning."""
SKEW = 1.0
"""Seconds by which clocks may differ."""
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that are supported."""


def examine_server(backend: RedisLockBackend) -> Iterator[Finding]:
    """Yield the findings; only one where a server does not answer."""
    try:
        pools = backend.pools()
    except (RedisError, OSError) as error:
        yield Finding(
            FAIL,
            "server",
            f"the cluster does not answer: {without_passwords(str(error))}",
            "Start its nodes, or mend LOCATION, its password or the network between.",
        )
        return
    for pool in pools:
        yield from _examine(pool, backend)


def _examine(pool: redis.ConnectionPool, backend: RedisLockBackend) -> Iterator[Finding]:
    client = redis.Redis(connection_pool=pool)
    where = _address(pool)
    try:
        client.time()
    except (RedisError, OSError) as error:
        yield Finding(
            FAIL,
            "server",
            f"{where} does not answer: {without_passwords(str(error))}",
            "Start it, or mend LOCATION, its password or the network between.",
        )
        return
    yield Finding(OK, "server", f"{where} answers")
    for check, examine in _EXAMINATIONS:
        try:
            yield from examine(client, backend)
        except NoPermissionError as error:
            yield Finding(
                WARN,
                check,
                f"not known: {error}",
                "Ask the server's administrator, or let a user who may run INFO look.",
            )
        except (RedisError, OSError) as error:
            yield Finding(FAIL, check, f"not known: {error}", "See whether the server is up.")
    yield from examine_permissions(client, backend)


def _address(pool: redis.ConnectionPool) -> str:
    kwargs = pool.connection_kwargs
    database = kwargs.get("db") or 0
    locate = master_of(pool)
    if locate is not None:
        try:
            host, port = locate()
        except (RedisError, OSError):
            return "the master, of which no sentinel tells,"
        return f"{host}:{port} (the master, as the sentinels tell) database {database}"
    if "path" in kwargs:
        return f"unix:{kwargs['path']} database {database}"
    host = kwargs.get("host", "localhost")
    return f"{host}:{kwargs.get('port', 6379)} database {database}"


def _version(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    oldest = OLDEST[name]
    if numbers < oldest:
        needed = f"{name} {'.'.join(map(str, oldest))}"
        yield Finding(FAIL, "version", f"{name} {version}", f"Upgrade to {needed} or newer.")
    else:
        yield Finding(OK, "version", f"{name} {version}")


def _round_trip(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    took = []
    skews = []
    for _ in range(ROUND_TRIPS):
        began, wall = time.monotonic(), time.time()
        seconds, micros = client.time()
        took.append(time.monotonic() - began)
        skews.append((took[-1], seconds + micros / 1_000_000 - wall - took[-1] / 2))
    median = statistics.median(took)
    found = f"{median * 1000:.2f} ms (median of {ROUND_TRIPS})"
    if median > SLOW:
        yield Finding(
            WARN,
            "round trip",
            found,
            "A free lock costs one to take and one to release; bring the server nearer.",
        )
    else:
        yield Finding(OK, "round trip", found)
    yield from _clock(min(skews)[1], client, backend)


def _clock(skew: float, client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    found = f"the server's is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    if abs(skew) > SKEW:
        yield Finding(
            WARN,
            "clock",
            found,
            "Leases do not depend on it, but the times that are shown are the server's: use NTP.",
        )
    else:
        yield Finding(OK, "clock", found)
    fence = client.get(backend.packing_at(client.connection_pool).fence_key)
    seconds, _ = client.time()
    last = fence.decode() if isinstance(fence, bytes) else fence or ""
    ahead = int(last) / 1_000_000 - seconds if last.isdecimal() else 0.0
    if ahead > SKEW + 1:
        yield Finding(
            WARN,
            "fence",
            f"the last one is {duration(ahead)} ahead of the server's clock, which was set back",
            "Fences go on rising; the times of acquisition that are shown are wrong meanwhile.",
        )


def _eviction(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    info = client.info("memory")
    policy, most = str(info.get("maxmemory_policy", "")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        yield Finding(OK, "eviction", "noeviction: no lock is thrown out")
    elif not policy:
        yield Finding(WARN, "eviction", "the server does not tell", "See its maxmemory-policy.")
    else:
        # Locks expire, so the policies for keys that expire can hit them too.
        yield Finding(
            FAIL if most else WARN,
            "eviction",
            f"{policy}: a held lock can be thrown out when memory is short"
            + ("" if most else "; there is no maxmemory yet"),
            "CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own.",
        )
    used = int(info.get("used_memory", 0))
    if most and used > 0.9 * most:
        yield Finding(
            WARN,
            "memory",
            f"{used / most:.0%} of maxmemory is used",
            "Without room no lock can be taken: raise maxmemory, or free some.",
        )


def _persistence(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
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
        yield Finding(OK, "persistence", f"append-only file: {_kept(client)}")
    else:
        yield Finding(
            WARN,
            "persistence",
            "no append-only file: a restart forgets the locks that are held",
            "CONFIG SET appendonly yes; or live with it where locks only save work, and use "
            "fences where they keep data right.",
        )


def _kept(client: Any) -> str:
    """Say what an append-only file keeps, by how often it reaches the disk."""
    try:
        fsync = str(client.config_get("appendfsync").get("appendfsync", ""))
    except RedisError:  # for administrators alone, and many hosted servers have no CONFIG
        fsync = ""
    if fsync == "always":
        return "locks outlive a restart and a power loss (appendfsync always)"
    known = {
        "everysec": "the last second (appendfsync everysec)",
        "no": "the last half minute or so (appendfsync no)",
    }
    lost = known.get(fsync, "the last second, or more if appendfsync is no")
    return f"locks outlive a restart; a power loss can lose {lost}"


def _replicas(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    info = client.info("replication")
    if info.get("role") != "master":
        yield Finding(
            FAIL,
            "replicas",
            f"this is a replica of {info.get('master_host')}:{info.get('master_port')}",
            "A replica takes no locks: let LOCATION lead to the primary.",
        )
        return
    number = int(info.get("connected_slaves", 0))
    wanted = backend.replicas.number if backend.replicas else 0
    if number < wanted:
        yield Finding(
            FAIL,
            "replicas",
            f"{number}, and OPTIONS['REPLICAS'] waits for {wanted}: no lock can be taken",
            "Start the replicas that are missing, or lower REPLICAS.",
        )
        return
    if number and wanted:
        told = f"{number}, of which {wanted} know of a lock before it counts"
    elif number:
        told = f"{number}; a failover can forget the locks of its last moments: use fences"
    else:
        told = "none: no failover"
    yield Finding(OK, "replicas", told)


def _cluster(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    if not client.info("cluster").get("cluster_enabled"):
        return
    if not backend.packing_at(client.connection_pool).shard:
        yield Finding(
            FAIL,
            "cluster",
            "this is a node of a cluster, and LOCATION names one server",
            "Write the URLs of some of the cluster's nodes into LOCATION, as a list.",
        )
        return
    client.set_response_callback("CLUSTER INFO", lambda answer, **_: answer)
    answer = client.execute_command("CLUSTER INFO")
    text = answer.decode() if isinstance(answer, bytes) else answer
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    state, served = told.get("cluster_state"), int(told.get("cluster_slots_ok", 0))
    found = f"state {state}, {served} of {SLOTS} slots served"
    if state != "ok" or served < SLOTS:
        yield Finding(
            FAIL, "cluster", found, "See CLUSTER NODES: which are down, which slots lack."
        )
    else:
        yield Finding(OK, "cluster", found)


def _timeouts(client: Any, backend: RedisLockBackend) -> Iterator[Finding]:
    pool = client.connection_pool
    # A connection that is never opened tells the defaults of this redis-py as well.
    timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    if timeout:
        yield Finding(OK, "timeout", f"a server that hangs is given up after {timeout:g} s")
        return
    yield Finding(
        WARN,
        "timeout",
        "none: a server that hangs hangs its callers too",
        'Write "OPTIONS": {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5} in CACHES, or '
        "socket_timeout=5 into the URL.",
    )


_EXAMINATIONS: tuple[tuple[str, Callable[[Any, RedisLockBackend], Iterator[Finding]]], ...] = (
    ("version", _version),
    ("round trip", _round_trip),
    ("eviction", _eviction),
    ("persistence", _persistence),
    ("replicas", _replicas),
    ("cluster", _cluster),
    ("timeout", _timeouts),
)
