"""What a cluster goes through while locks are held and waited for."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from django_redis_lock import Lock, lock, locks, semaphore
from django_redis_lock.backends.clusters.topology import SHARD_SLOTS, SHARDS, shard_of
from django_redis_lock.celery.outbox import Publisher
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.calls import ask
from django_redis_lock.transport.clients import BlockingClient
from django_redis_lock.transport.parking import NoteTick, ReadTicks
from tests.celery.consumer import Consumer
from tests.layouts.failovers import answered, patiently
from tests.layouts.servers import Cluster, client
from tests.tools import Background, eventually, queue, waiters


def handle(name: str, limit: int | None, **options: Any) -> Lock:
    kind = lock if limit is None else partial(semaphore, limit=limit)
    return kind(name, timeout=60, **options)


def slot_of(name: str) -> int:
    return SHARD_SLOTS[shard_of(name)]


def names_on_each(cluster: Cluster, name: str) -> list[str]:
    """Return a name of a lock for each master, kept by that master."""
    found: dict[int, str] = {}
    for number in range(1000):
        one = f"{name}:{number}"
        found.setdefault(cluster.master_of(slot_of(one)).port, one)
        if len(found) == len(cluster.masters()):
            return list(found.values())
    raise AssertionError(f"all names fall to {found}")


def other_master(cluster: Cluster, slot: int) -> Any:
    owner = cluster.master_of(slot)
    return next(server for server in cluster.masters() if server is not owner)


@pytest.fixture
def own_cluster(settings: Any) -> Any:
    with Cluster() as cluster:
        settings.LOCKS = cluster.locks()["LOCKS"]
        yield cluster
        locks.reset()


def test_one_round_trip_to_take_and_one_to_release(cluster: Cluster, name: str) -> None:
    """Once the topology is known, nothing but the two scripts is sent."""
    with lock(name):
        pass
    nodes = [client(server) for server in cluster.masters()]
    for node in nodes:
        node.config_resetstat()
    with lock(name):
        pass
    stats = [node.info("commandstats") for node in nodes]
    assert sum(one.get("cmdstat_evalsha", {}).get("calls", 0) for one in stats) == 2
    assert not any("cmdstat_cluster|slots" in one for one in stats)
    for node in nodes:
        node.close()


def test_a_connection_for_each_node_listens(cluster: Cluster, name: str) -> None:
    """However many locks are waited for, a process has one listening connection per node."""
    held = [lock(f"{name}:{number}", timeout=60) for number in range(40)]
    for item in held:
        item.acquire()

    def pass_through(one: str) -> bool:
        with lock(one, timeout=60):
            return True

    queue = [Background(lambda one=item.name: pass_through(one)) for item in held for _ in range(2)]
    eventually(lambda: all(waiters(item.name) == 2 for item in held))
    for server in cluster.masters():
        with client(server) as one:
            assert len(one.client_list(_type="pubsub")) == 1
    for item in held:
        item.release()
    assert all(waiting.outcome() for waiting in queue)


def test_a_beat_that_leads_notes_what_it_sends(cluster: Cluster, name: str) -> None:
    run = locks["default"].run
    with lock(name) as held:
        assert run(ask(NoteTick(name, held.held_lease().token, "hourly", 1.5))) == 1
        assert run(ask(NoteTick(name, "another", "hourly", 2.5))) == 0
    assert run(ask(ReadTicks(name))) == [b"hourly", b"1.500000"]


def test_listing_costs_two_round_trips_a_node(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many shards have locks, each node is asked once for names and once for holders."""
    held = [lock(f"{name}:{number}", timeout=60) for number in range(200)]
    for item in held:
        item.acquire()
    sent = []
    send = BlockingClient.call_all
    monkeypatch.setattr(
        BlockingClient, "call_all", lambda self, batch: sent.append(len(batch)) or send(self, batch)
    )
    found = [holder.name for holder in locks["default"].holders()]
    assert sorted(found) == sorted(item.name for item in held)
    assert len(sent) <= 2 * len(cluster.masters())
    assert sum(sent) <= 2 * SHARDS


def test_resharding_under_load(cluster: Cluster, name: str) -> None:
    """Locks and permits are taken, waited for and released while their slots move to and fro."""
    names = [f"{name}:{number}" for number in range(4)]
    limits: dict[str, int | None] = dict(zip(names, [None, None, 2, 2], strict=True))
    inside: dict[str, list[int]] = {one: [] for one in names}
    fences: dict[str, list[int]] = {one: [] for one in names}
    stop = threading.Event()

    def work(one: str) -> int:
        done = 0
        while not stop.is_set():
            try:
                with handle(one, limits[one], blocking_timeout=30) as held:
                    inside[one].append(held.fence)
                    assert len(inside[one]) <= (limits[one] or 1)
                    fences[one].append(held.fence)
                    time.sleep(0.001)
                    inside[one].remove(held.fence)
                    done += 1
            except LockUnavailable:
                continue  # for a while it can't be asked; what it asked is taken back
        return done

    workers = [Background(lambda one=one: work(one)) for one in names for _ in range(3)]
    try:
        for _ in range(3):
            for one in names:
                slot = slot_of(one)
                seen = len(fences[one])
                cluster.move_slot(slot, other_master(cluster, slot))
                eventually(lambda one=one, seen=seen: len(fences[one]) > seen + 3)
    finally:
        stop.set()
    assert all(worker.outcome() for worker in workers)
    for one in names:
        told = sorted(fences[one]) if limits[one] else fences[one]
        assert told == sorted(set(told))
    cluster.settle()


def test_master_killed_while_locks_are_held_and_waited_for(own_cluster: Cluster, name: str) -> None:
    """When one node dies its locks go on with its replica, and those of the others never stop."""
    names = names_on_each(own_cluster, name)
    held = [lock(one) for one in names]  # renewed, with a lease of 30 s
    for item in held:
        assert item.acquire()
    fences = [item.fence for item in held]
    for one in names:
        with client(own_cluster.master_of(slot_of(one))) as master:
            master.execute_command("WAIT", 1, 5000)
    queue = [Background(lambda one=one: patiently(one)) for one in names]
    eventually(lambda: all(waiters(one) == 1 for one in names))

    dead = own_cluster.master_of(slot_of(names[0]))
    dead.kill()
    for item in held[1:]:
        item.ensure_held()  # the other nodes answer all the while
    own_cluster.promoted(slot_of(names[0]), dead)

    for item, fence in zip(held, fences, strict=True):
        eventually(lambda item=item: answered(item.ensure_held))
        assert not item.lost, "it was replicated, so it lived on"
        assert item.fence == fence
        item.release()
    for waiting, fence in zip(queue, fences, strict=True):
        assert waiting.outcome() > fence


def test_cluster_without_sharded_channels(settings: Any, name: str) -> None:
    with Cluster(3, 0, "--rename-command", "SSUBSCRIBE", "") as old:
        settings.LOCKS = old.locks()["LOCKS"]
        held = lock(name, timeout=60)
        held.acquire()
        (waiting,) = queue(lock(name, timeout=60))
        assert locks["default"].registry_for("").waits_in(name).startswith("c")
        held.release()
        assert waiting.outcome() is True
        locks.reset()


def test_nodes_that_do_not_tell_their_hosts(own_cluster: Cluster, name: str) -> None:
    """They have the host of the node that was asked, as behind a proxy or in containers."""
    for server in own_cluster.masters():
        with client(server) as one:
            one.config_set("cluster-preferred-endpoint-type", "unknown-endpoint")
    for one in names_on_each(own_cluster, name):
        held = lock(one, timeout=60)
        held.acquire()
        own_cluster.move_slot(slot_of(one), other_master(own_cluster, slot_of(one)))
        assert asyncio.run(_owned(held))
        own_cluster.move_slot(slot_of(one), other_master(own_cluster, slot_of(one)))
        held.ensure_held()
        held.release()


async def _owned(held: Lock) -> bool:
    return await held.aowned()


def test_unreachable_cluster_is_unavailable(settings: Any, name: str) -> None:
    """If no node answers it is LockUnavailable, which never looks like a held lock."""
    with Cluster(1, 0) as gone:
        settings.LOCKS = gone.locks()["LOCKS"]
        with lock(name):
            pass
    with pytest.raises(LockUnavailable, match="nodes reports"):
        lock(name).acquire(blocking=False)
    locks.reset()


def keep_key(key: str) -> str:
    return key


def test_messages_are_parked_on_each_node(cluster: Cluster, name: str) -> None:
    """They are kept by the node of their lock, and one look is about all nodes."""
    consumer = Consumer(name)
    options = {"using": "default", "key": "{key}", "on_conflict": "park", "concurrency": 1}
    task = consumer.task(keep_key, **options)
    publisher = Publisher(consumer.app)
    backend = locks["default"]
    keys = sorted(names_on_each(cluster, name))
    with ExitStack() as stack:
        for key in keys:
            stack.enter_context(lock(key, timeout=60))
        for key in keys:
            consumer.deliver(consumer.send(task, key))
        assert [len(backend.waiting(key)) for key in keys] == [1] * len(keys)
        for server in cluster.masters():
            with client(server) as node:
                assert [one for one in node.keys("*-parked*") if not one.endswith(":locks")]
        while publisher.publish(backend)[0] == 0.0:
            pass
        assert consumer.message() is None
    while publisher.publish(backend)[0] == 0.0:
        pass
    back = [consumer.message() for _ in keys]
    assert consumer.message() is None
    assert sorted(consumer.deliver(message) for message in back) == keys
    assert [*backend.holders()] == []

    assert publisher.unpark(backend, keys[0]) == 0
    consumer.close()
