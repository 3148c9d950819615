"""Parked messages in a cluster."""

from __future__ import annotations

from contextlib import ExitStack

from django_redis_lock import lock, locks
from django_redis_lock.backends.clusters.topology import SHARD_SLOTS, shard_of
from django_redis_lock.celery.outbox import Publisher
from tests.celery.consumer import Consumer, id_of
from tests.layouts.servers import Cluster, client
from tests.tools import eventually


def keep_key(key: str) -> str:
    return key


def test_messages_are_parked_on_each_node(cluster: Cluster, name: str) -> None:
    """They are kept by the node of their lock, and one look is about all nodes."""
    consumer = Consumer(name)
    options = {"using": "default", "key": "{key}", "on_conflict": "park", "concurrency": 1}
    task = consumer.task(keep_key, **options)
    publisher = Publisher(consumer.app)
    backend = locks["default"]
    by_node: dict[int, str] = {}
    for number in range(1000):
        key = f"{name}:{number}"
        by_node.setdefault(cluster.master_of(SHARD_SLOTS[shard_of(key)]).port, key)
    keys = sorted(by_node.values())
    assert len(keys) == len(cluster.masters())

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

    # A holder whose lease ends releases nothing: a look finds it.
    gone = lock(keys[0], timeout=0.3)
    assert gone.acquire()
    sent = consumer.send(task, keys[0])
    consumer.deliver(sent)

    def published() -> bool:
        publisher.publish(backend, 0)
        return not backend.waiting(keys[0])

    eventually(published, "a look after the lease")
    publisher.publish(backend)
    assert id_of(consumer.message()) == id_of(sent)
    assert publisher.unpark(backend, keys[0]) == 0
    consumer.close()
