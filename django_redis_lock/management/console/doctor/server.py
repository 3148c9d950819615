"""The examinations of a server's version, distance, clock, replicas and cluster."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from typing import Any

from redis.exceptions import ClusterDownError, MovedError, NoPermissionError, ResponseError

from django_redis_lock.backends.servers.sharding import SLOTS
from django_redis_lock.management.console.doctor.targets import Finding, Target, fail, ok, warn
from django_redis_lock.management.console.durations import duration
from django_redis_lock.transport.redis_py import cluster_error

ROUND_TRIPS = 21
SLOW = 0.010
"""Seconds of a round trip that are worth a warning."""
SKEW = 1.0
"""Seconds by which clocks may differ."""
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""The oldest versions that are supported."""


def examine_version(client: Any, target: Target) -> Iterator[Finding]:
    """Is it new enough?"""
    info = client.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    oldest = OLDEST[name]
    if numbers < oldest and target.scripted:
        needed = f"{name} {'.'.join(map(str, oldest))}"
        yield fail("version", f"{name} {version}", f"Upgrade to {needed} or newer.")
    else:
        yield ok("version", f"{name} {version}")


def examine_round_trip(client: Any, target: Target) -> Iterator[Finding]:
    """How long is a round trip, and does the server's clock agree with this host's?"""
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
        remedy = "Move the server closer: acquire and release take a round trip each."
        yield warn("round trip", found, remedy)
    else:
        yield ok("round trip", found)
    yield _clock(min(skews)[1])


def _clock(skew: float) -> Finding:
    found = f"the server's is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    if abs(skew) <= SKEW:
        return ok("clock", found)
    return warn(
        "clock",
        found,
        "Run NTP on both. Leases do not depend on it, but displayed times are the server's.",
    )


def examine_fence(client: Any, target: Target) -> Iterator[Finding]:
    """Was the clock set back since the last fence was given?"""
    fence = client.get(target.packing.fence_key)
    seconds, _ = client.time()
    last = fence.decode() if isinstance(fence, bytes) else fence or ""
    ahead = int(last) / 1_000_000 - seconds if last.isdecimal() else 0.0
    if ahead > SKEW + 1:
        yield warn(
            "fence",
            f"the last one is {duration(ahead)} ahead of the server's clock, which was set back",
            "Fences keep rising, but displayed acquisition times are wrong until it catches up.",
        )


def misplaced(client: Any, target: Target) -> Finding | None:
    """Return a finding if a node of a cluster is used as a single server.

    All other examinations would fail for the same reason.
    """
    if target.packing.shard or not _is_node(client, target):
        return None
    if target.scripted and not target.member:
        return fail(
            "cluster",
            "this is a cluster node, but LOCATION names a single server",
            "Set LOCATION to the URLs of some of the cluster's nodes, as a list.",
        )
    return fail(
        "cluster",
        "this is a cluster node, which this backend can't use",
        "Use servers outside of a cluster, or the backend "
        "'django_redis_lock.backends.redis.RedisLockBackend' with a list of nodes as LOCATION.",
    )


def _is_node(client: Any, target: Target) -> bool:
    known = is_in_cluster(client)
    if known is None:
        try:
            client.get(target.packing.fence_key)
        except ResponseError as error:
            return isinstance(cluster_error(error), MovedError | ClusterDownError)
    return bool(known)


def is_in_cluster(client: Any) -> bool | None:
    """Return whether a server is a node of a cluster, ``None`` if unknown."""
    try:
        return bool(client.info("cluster").get("cluster_enabled"))
    except NoPermissionError:
        client.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
        try:
            client.execute_command("CLUSTER SLOTS")
        except ResponseError as error:
            return False if "cluster support disabled" in str(error) else None
        return True
    except ResponseError:
        return None


def examine_replicas(client: Any, target: Target) -> Iterator[Finding]:
    """Is it the primary, and does it have the replicas that locks wait for?"""
    info = client.info("replication")
    if info.get("role") != "master":
        yield fail(
            "replicas",
            f"this is a replica of {info.get('master_host')}:{info.get('master_port')}",
            "Set LOCATION to the primary: a replica grants no locks.",
        )
        return
    number = int(info.get("connected_slaves", 0))
    wanted = target.replicas.number if target.replicas else 0
    if number < wanted:
        yield fail(
            "replicas",
            f"{number}, but OPTIONS['REPLICAS'] waits for {wanted}: no lock can be acquired",
            "Start the missing replicas, or lower REPLICAS.",
        )
    elif wanted:
        yield ok("replicas", f"{number}; a lock counts once {wanted} of them have it")
    elif number:
        yield ok("replicas", f"{number}; a failover can lose the newest locks: use fences")
    else:
        yield ok("replicas", "none: no failover")


def examine_cluster(client: Any, target: Target) -> Iterator[Finding]:
    """Is every slot of the cluster served?"""
    if not target.packing.shard:
        return
    client.set_response_callback("CLUSTER INFO", lambda answer, **_: answer)
    answer = client.execute_command("CLUSTER INFO")
    text = answer.decode() if isinstance(answer, bytes) else answer
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    state, served = fields.get("cluster_state"), int(fields.get("cluster_slots_ok", 0))
    found = f"state {state}, {served} of {SLOTS} slots served"
    if state != "ok" or served < SLOTS:
        yield fail("cluster", found, "Run CLUSTER NODES to find failed nodes and unserved slots.")
    else:
        yield ok("cluster", found)
