"""Parked messages while their broker takes nothing, or has no queue for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.celery import outbox
from django_redis_lock.celery.outbox import Publisher
from django_redis_lock.transport import parking as calls
from tests.brokers.site import Broker, RabbitBroker
from tests.celery.consumer import Consumer, body, id_of
from tests.tools import eventually
from tests.tools.proxy import Proxy

ALARM = "set_vm_memory_high_watermark"
"""The share of the memory from which on a RabbitMQ takes no messages."""


@pytest.fixture
def proxy(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Is before the broker of ``parked``, which has less time than usual to answer."""
    monkeypatch.setattr(outbox, "CONFIRM_WITHIN", 0.3)
    monkeypatch.setattr(calls, "TAKEN_ON", 500)
    with Proxy(broker.port) as proxy:
        yield proxy


@pytest.fixture
def parked(broker: Broker, proxy: Proxy) -> Iterator[Consumer]:
    url = broker.url.replace(str(broker.port), str(proxy.port))
    consumer = Consumer(f"published-{uuid4()}", url)
    consumer.task(body, using="default", on_conflict="park")
    yield consumer
    consumer.close()


@pytest.fixture
def publisher(parked: Consumer) -> Iterator[Publisher]:
    publisher = Publisher(parked.app)
    yield publisher
    publisher.close()


def park(consumer: Consumer, *queues: str) -> list[str]:
    """Park a task of each queue, of which the first has the lock then; return their ids."""
    task, sent = consumer.app.tasks[f"{consumer.app.main}.body"], []
    with lock(consumer.app.main, timeout=60):
        for queue in queues:
            task.apply_async(queue=queue)
            sent.append(take(consumer, queue))
            consumer.deliver(sent[-1])
    return [id_of(message) for message in sent]


def take(consumer: Consumer, queue: str) -> Any:
    consumer.app.conf.task_default_queue = queue
    return consumer.message()


@pytest.mark.parametrize("fault", ["frozen", "alarm"])
def test_what_a_broker_does_not_take_is_published_later(
    parked: Consumer, publisher: Publisher, proxy: Proxy, broker: Broker, fault: str
) -> None:
    """The attempt ends, and the message is there once the broker takes it."""
    backend, name = locks["default"], parked.app.main
    begin, end = proxy.hold_back, proxy.let_go
    if fault == "alarm" and isinstance(broker, RabbitBroker):
        begin, end = (partial(broker.node.control, ALARM, share) for share in ("0", "0.6"))
    (task_id,) = park(parked, name)
    begin()
    try:
        publisher.publish(backend)
        assert publisher.unreachable
    finally:
        end()
    eventually(lambda: publisher.publish(backend)[0] == math.inf, "it is published")
    came = take(parked, name)
    assert id_of(came) == task_id
    assert parked.deliver(came) == "ran"


def test_what_has_no_queue_gives_its_lock_to_the_next(
    parked: Consumer, publisher: Publisher, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A RabbitMQ returns it. Other brokers know no queue that is missing."""
    backend, name = locks["default"], parked.app.main
    ids = park(parked, f"{name}-gone", name)
    with parked.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(f"{name}-gone")
    publisher.publish(backend)
    if isinstance(broker, RabbitBroker):
        assert "NO_ROUTE" in caplog.text
        publisher.publish(backend)
        assert id_of(take(parked, name)) == ids[1]
