"""Where a message may be that RabbitMQ has delivered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kombu import Connection

from django_redis_lock.management.console import broker
from tests.brokers.rabbitmq import RabbitMQ

QUEUE = "looked-at"


@pytest.fixture(autouse=True)
def _idle() -> None:
    """No worker is needed here."""


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A connection to a RabbitMQ with an empty queue."""
    with RabbitMQ() as server, Connection(f"amqp://127.0.0.1:{server.port}//") as connection:
        connection.default_channel.queue_declare(QUEUE)
        yield connection


def test_consumer_that_no_worker_answers_for_may_have_the_message(connection: Connection) -> None:
    """An empty queue says nothing of messages that its consumers have not acknowledged."""
    broker._check_queues(connection, [QUEUE], {})
    connection.default_channel.basic_consume(QUEUE, callback=print)
    with pytest.raises(broker.MessagesNotKnown, match="answered: 0 of 1"):
        broker._check_queues(connection, [QUEUE], {})
    broker._check_queues(connection, [QUEUE], {"worker": {"queues": [QUEUE]}})
