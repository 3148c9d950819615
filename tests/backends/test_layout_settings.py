"""LOCATION as a list, REPLICAS and the shards: what needs no server."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
from redis.crc import key_slot

from django_redis_lock import locks
from django_redis_lock.backends.cluster import RedisClusterLockBackend
from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.backends.servers.cluster import Cluster
from django_redis_lock.backends.servers.sharding import SHARD_SLOTS, SHARDS, SLOTS, TAGS, shard_of
from django_redis_lock.backends.servers.single import ScriptedServer
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.transport.packing import Packing

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


def test_shards_are_spread_over_all_slots() -> None:
    """Each of up to 64 masters that share the slots evenly has a shard; three have a third each."""
    assert [slot * SHARDS // SLOTS for slot in SHARD_SLOTS] == list(range(SHARDS))
    per_master = Counter(slot * 3 // SLOTS for slot in SHARD_SLOTS)
    assert max(per_master.values()) - min(per_master.values()) <= 1
    names = Counter(shard_of(f"product:{number}") for number in range(64_000))
    assert len(names) == SHARDS
    assert max(names.values()) < 1.2 * min(names.values())


@pytest.mark.parametrize("name", ["a", "{b}", "x{y}z", "}{", "鎖 {🔒}"])
def test_all_keys_of_a_lock_are_in_its_slot(name: str) -> None:
    """Braces in a name change nothing about the slot of its keys."""
    shard = shard_of(name)
    packing = Packing("lock", TAGS[shard])
    keys = [packing.lock_prefix + name, packing.queue_prefix + name]
    keys += [packing.index_key, packing.fence_key, packing.audit_key]
    assert {key_slot(key.encode()) for key in keys} == {SHARD_SLOTS[shard]}


def test_one_server_has_no_hash_tags() -> None:
    packing = Packing("lock")
    assert (packing.lock_prefix, packing.queue_prefix) == ("lock:", "lock-queue:")
    assert (packing.index_key, packing.fence_key) == ("lock-index", "lock-fence")
    assert packing.audit_key == "lock-audit"


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
        backend(NODES).hub_for(wait)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ([], "is an empty list"),
        ([7], "has 7; a list names the nodes"),
        (["locks"], "has 'locks'; a list names the nodes"),
        (["unix:///run/valkey.sock"], "begins with redis:// or rediss://"),
        (["redis://10.0.0.1:7000/1"], "a cluster has no database but 0"),
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


def test_mistakes_do_not_show_passwords() -> None:
    with pytest.raises(InvalidLockBackend) as caught:
        backend(["redis://user:hush@10.0.0.1:7000/3"])
    assert "hush" not in str(caught.value)
    assert "10.0.0.1:7000/3" in str(caught.value)


def test_braces_in_a_prefix_of_a_cluster() -> None:
    """A prefix with braces would choose the slot in place of the shard."""
    with pytest.raises(InvalidLockBackend, match="leave them out"):
        backend(NODES, KEY_PREFIX="{shop}")
    assert backend(NODES[0], KEY_PREFIX="{shop}").key_prefix == "{shop}"


@pytest.mark.parametrize("number", [-1, True, 1.0, "1", None])
def test_invalid_numbers_of_replicas(number: Any) -> None:
    with pytest.raises(InvalidLockBackend, match=r"\['REPLICAS'\] is .*an int from 0 up"):
        backend(NODES[0], OPTIONS={"REPLICAS": number})


@pytest.mark.parametrize("timeout", [0, -1, True, "1", float("nan"), float("inf"), None])
def test_invalid_timeouts_of_replicas(timeout: Any) -> None:
    with pytest.raises(InvalidLockBackend, match="REPLICA_TIMEOUT"):
        backend(NODES[0], OPTIONS={"REPLICAS": 1, "REPLICA_TIMEOUT": timeout})


def test_timeout_without_replicas() -> None:
    with pytest.raises(InvalidLockBackend, match="REPLICA_TIMEOUT without REPLICAS"):
        backend(NODES[0], OPTIONS={"REPLICA_TIMEOUT": 1})
    with pytest.raises(InvalidLockBackend, match="REPLICA_TIMEOUT without REPLICAS"):
        backend(NODES[0], OPTIONS={"REPLICAS": 0, "REPLICA_TIMEOUT": 1})


def test_replicas_of_a_cluster_are_configured_alike() -> None:
    """The options are the same whatever LOCATION is."""
    for location in (NODES, NODES[0]):
        made = backend(location, OPTIONS={"REPLICAS": 2, "REPLICA_TIMEOUT": 0.5})
        assert made.replicas is not None
        assert (made.replicas.number, made.replicas.timeout) == (2, 0.5)
        assert made.replicas.command == b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$3\r\n500\r\n"
        assert backend(location).replicas is None


def test_shared_database_is_warned_of(settings: Any) -> None:
    """A cache on a node of the cluster shares its one database."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"{NODES[1]}/0"}
    settings.CACHES = {"default": cache}
    settings.LOCKS = {"default": {"LOCATION": NODES}}
    (message,) = locks["default"].check()
    assert message.id == "django_redis_lock.W001"
    assert "one database" in message.hint
    settings.CACHES = {"default": {**cache, "LOCATION": "redis://10.0.0.9:7000/0"}}
    assert locks["default"].check() == []
