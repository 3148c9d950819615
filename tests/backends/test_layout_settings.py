"""LOCATION as a list, REPLICAS and the shards: what needs no server."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from django_redis_lock.backends.cluster import RedisClusterLockBackend
from django_redis_lock.backends.clusters.servers import Cluster
from django_redis_lock.backends.clusters.topology import (
    SHARDS,
    TAGS,
    shard_of,
)
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.servers import ScriptedServer
from django_redis_lock.exceptions import InvalidLockBackend

NODES = ["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"]


def backend(location: Any, **entry: Any) -> RedisLockBackend:
    return RedisLockBackend("default", {"LOCATION": location, **entry})


def test_shards_are_what_they_have_always_been() -> None:
    """Programs of different versions must agree on the shard and on the tag of every name."""
    assert SHARDS == 64
    digest = hashlib.sha256(" ".join(TAGS).encode()).hexdigest()
    assert digest.startswith("941a27d4000dfe54")
    assert {name: shard_of(name) for name in ("a", "product:42", "ключ:{42}", "鎖 🔒")} == {
        "a": 7,
        "product:42": 40,
        "ключ:{42}": 52,
        "鎖 🔒": 33,
    }


def test_list_makes_a_cluster() -> None:
    """A list of URLs, or a tuple, is a cluster; one URL is one server."""
    for location in (NODES, tuple(NODES)):
        assert isinstance(backend(location).servers, Cluster)
        cluster = RedisClusterLockBackend("default", {"LOCATION": location})
        assert isinstance(cluster.servers, Cluster)
    assert isinstance(backend(NODES[0]).servers, ScriptedServer)


@pytest.mark.parametrize("wait", ["blpop", "poll"])
def test_waiting_schemes_of_a_cluster(wait: str) -> None:
    """A cluster has only ``queue``, whether the entry or a lock asks for another."""
    with pytest.raises(InvalidLockBackend, match=f"can only be 'queue', not '{wait}'"):
        backend(NODES, OPTIONS={"WAIT": wait})
    with pytest.raises(InvalidLockBackend, match="can only be 'queue'"):
        backend(NODES).registry_for(wait)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ([], "is an empty list"),
        ([7], "has 7, which is no URL"),
        (["locks"], "has 'locks', which is no URL"),
        (["unix:///run/valkey.sock"], "begins with redis:// or rediss://"),
        (["redis://10.0.0.1:7000/1"], "names a database"),
        (["redis://10.0.0.1:port"], "10.0.0.1:port"),
        (["redis://10.0.0.1:7000", "rediss://10.0.0.2:7000"], "with different schemes"),
        (["redis://a:b@10.0.0.1:7000", "redis://10.0.0.2:7000"], "users, passwords or options"),
        ({"a": 1}, "must be an alias of CACHES, a URL, or a list"),
    ],
)
def test_mistakes_in_a_list(location: Any, words: str) -> None:
    """A list that can't be the nodes of one cluster is an error that says why."""
    with pytest.raises(InvalidLockBackend, match=words):
        backend(location)


def test_braces_in_a_prefix_of_a_cluster() -> None:
    """A prefix with braces would choose the slot in place of the shard."""
    with pytest.raises(InvalidLockBackend, match="leave them out"):
        backend(NODES, KEY_PREFIX="{shop}")
    assert backend(NODES[0], KEY_PREFIX="{shop}").key_prefix == "{shop}"


@pytest.mark.parametrize("number", [-1, True, 1.0, "1", None])
def test_invalid_numbers_of_replicas(number: Any) -> None:
    with pytest.raises(InvalidLockBackend, match=r"\['REPLICAS'\] is .*an int from 0 up"):
        backend(NODES[0], OPTIONS={"REPLICAS": number})


def test_timeout_of_replicas_beyond_the_connections() -> None:
    """The wait for replicas must end before the connection times out."""
    options = {"REPLICAS": 1, "REPLICA_TIMEOUT": 2}
    with pytest.raises(InvalidLockBackend, match="connection is given up after 2 s"):
        backend(f"{NODES[0]}?socket_timeout=2", OPTIONS=options).open()


@pytest.mark.parametrize("timeout", [0, -1, True, "1", float("nan"), float("inf"), None])
def test_invalid_timeouts_of_replicas(timeout: Any) -> None:
    with pytest.raises(InvalidLockBackend, match="REPLICA_TIMEOUT"):
        backend(NODES[0], OPTIONS={"REPLICAS": 1, "REPLICA_TIMEOUT": timeout})
