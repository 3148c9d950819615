"""The shards of a cluster, and LOCATION as a list: what needs no server."""

from __future__ import annotations

import hashlib
import selectors
import socket
from typing import Any
from unittest.mock import MagicMock

import pytest
from redis.exceptions import MovedError, ReadOnlyError, ResponseError

from django_redis_lock.backends.cluster import RedisClusterLockBackend
from django_redis_lock.backends.clusters import Cluster
from django_redis_lock.backends.clusters.listener import ClusterListener
from django_redis_lock.backends.clusters.topology import (
    SHARD_SLOTS,
    SHARDS,
    TAGS,
    Topology,
    shard_of,
)
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol.calls import Heartbeat
from django_redis_lock.transport.clients import NOTHING
from django_redis_lock.transport.receiving import ReceivingRegistry

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
    """A list of URLs, or a tuple, is a cluster, where all wait by ``queue``."""
    for location in (NODES, tuple(NODES)):
        assert isinstance(backend(location).servers, Cluster)
        cluster = RedisClusterLockBackend("default", {"LOCATION": location})
        assert isinstance(cluster.servers, Cluster)
        with pytest.raises(InvalidLockBackend, match="must be 'queue', not 'poll'"):
            cluster.registry_for("poll")
    assert backend(NODES[0], KEY_PREFIX="{shop}").key_prefix == "{shop}"


def test_timeout_of_replicas_beyond_the_connections() -> None:
    """The wait for replicas must end before the connection times out."""
    options = {"REPLICAS": 1, "REPLICA_TIMEOUT": 2}
    with pytest.raises(InvalidLockBackend, match="than the connection's timeout, 2 s"):
        backend(f"{NODES[0]}?socket_timeout=2", OPTIONS=options).open()


def test_heartbeats_of_shards_are_one() -> None:
    _, join = backend(NODES).servers._split(Heartbeat("s1-1", {"a": "", "product:42": ""}, 0))
    answers = [b"10 500", b"a"], [b"8 300", b"", b"message"], [b"9 -1", b"b"]
    assert join([[*each] for each in answers]) == [b"8 300", b"a\nb", b"message"]


def test_redirection_to_the_host_of_the_node_itself() -> None:
    topology = Topology(["redis://127.0.0.1:1"])
    topology.moved(MovedError(f"{SHARD_SLOTS[7]} :2"), ("127.0.0.1", 1))
    assert topology.known(7) == ("127.0.0.1", 2)


def test_a_node_that_became_a_replica_is_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call asks the others who is the master."""
    servers, suspected = backend(NODES).servers, list[Any]()
    monkeypatch.setattr(servers.topology, "suspect", suspected.append)
    for error in (ReadOnlyError("READONLY"), ResponseError("NOPERM")):
        with pytest.raises(type(error)):
            servers._failed(("10.0.0.1", 7000), error)
    assert suspected == [("10.0.0.1", 7000)]


def test_a_listener_sleeps_no_longer_than_silence_is_normal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would not notice for an hour that a connection is lost."""
    listener, slept = ClusterListener(Topology(NODES), "lock"), list[float]()
    ReceivingRegistry(listener, lambda *_: None, confirming=True)
    listener._ears[0] = ear = MagicMock()
    ear.patience.return_value, ear.receive_arrived.return_value = 7.0, NOTHING
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda _, s: slept.append(s))
    with socket.socket() as ear.origin._sock:
        assert listener.receive(3600.0)
    assert slept == [7.0]
