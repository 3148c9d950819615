"""The examinations of a server's role: primary, replica or node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ClusterDownError, MovedError, NoPermissionError, ResponseError

from django_redis_lock.backends.redis.backend import RedisLockBackend
from django_redis_lock.backends.servers.sharding import SLOTS
from django_redis_lock.management.console.doctor.findings import FAIL, OK, Finding
from django_redis_lock.management.console.doctor.targets import Target

NAMES_NODES = "Write the URLs of some of the cluster's nodes into LOCATION, as a list."


def misplaced(client: Any, target: Target) -> Finding | None:
    """Return a finding if a node of a cluster is used as a single server.

    All other examinations would fail for the same reason.
    """
    if target.packing.shard or not _is_node(client, target):
        return None
    if isinstance(target.backend, RedisLockBackend) and not target.member:
        return Finding(
            FAIL,
            "cluster",
            "this is a node of a cluster, and LOCATION names one server",
            NAMES_NODES,
        )
    return Finding(
        FAIL,
        "cluster",
        "this is a node of a cluster, which this backend can't use",
        "Name servers outside of a cluster; or use the backend "
        "'django_redis_lock.backends.redis.RedisLockBackend' with a list of nodes as LOCATION.",
    )


def _is_node(client: Any, target: Target) -> bool:
    try:
        return bool(client.info("cluster").get("cluster_enabled"))
    except ResponseError:  # denied or unknown; try another command
        try:
            client.get(target.packing.fence_key)
        except (MovedError, ClusterDownError):
            return True
        except ResponseError:
            return False
        return False


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
        yield Finding(
            FAIL,
            "replicas",
            f"this is a replica of {info.get('master_host')}:{info.get('master_port')}",
            "A replica takes no locks: let LOCATION lead to the primary.",
        )
        return
    number = int(info.get("connected_slaves", 0))
    replicas = getattr(target.backend, "replicas", None)
    wanted = replicas.number if replicas else 0
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


def examine_cluster(client: Any, target: Target) -> Iterator[Finding]:
    """Is every slot of the cluster served?"""
    if not target.packing.shard:
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
