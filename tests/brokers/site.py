"""A broker with a worker and two senders, as the tests see them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import redis
from celery.result import AsyncResult
from kombu import Connection
from kombu.utils.json import loads

from django_redis_lock import lock, locks
from tests.apps.celery.brokers import make_app
from tests.brokers.rabbitmq import Node
from tests.settings import PORT, server_url
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, disconnect, go, held, ran
from tests.tools.proxy import Proxy

OWN = (
    *("delivery_tag", "delivery_info", "application_headers"),
    "expiration",  # the broker's time for the message has passed in part; its header says when
    *("argsrepr", "kwargsrepr"),  # options that Celery sends as properties, which AMQP has not
)
"""The properties of one delivery."""
OF_DELIVERY = ("x-death", "x-first-death", "x-last-death", "x-delivery-count")
"""How headers of one delivery begin."""


class RedisBroker:
    port = PORT
    url = server_url(10)

    def deliver_again(self) -> None:
        """Do what the broker's clients do once the visibility timeout is over."""
        options = {"visibility_timeout": 0}
        with Connection(self.url, transport_options=options) as connection:
            connection.default_channel.qos.restore_visible(interval=1)


class RabbitBroker:
    def __init__(self, proxy: Proxy, node: Node) -> None:
        self.node = node
        self.port = proxy.port
        self.url = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
        self._proxy = proxy

    def deliver_again(self) -> None:
        """Take back from workers what they did not acknowledge, with their connections."""
        self._proxy.cut()


Broker = RedisBroker | RabbitBroker


class Site:
    def __init__(self, broker: Broker, worker: Worker, client: redis.Redis) -> None:
        self.broker = broker
        self.worker = worker
        self.client = client
        self.app = make_app(broker.url, "sender")
        self._names: list[str] = []

    def name(self) -> str:
        """Return what no other test's tasks are about."""
        self._names.append(f"w{uuid.uuid4().hex[:8]}")
        return self._names[-1]

    def let_all_go(self) -> None:
        """Let runs go on that a failed test has left, so that the next one finds idle children."""
        while self._names:
            what = self._names.pop()
            go(self.client, what, times=4)
            for name in held(what):
                locks["default"].force_release(name)

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def ran(self, what: str) -> list[str]:
        """Return the notes that runs left: how many there were at a time."""
        return ran(self.client, what)

    def logged(self, text: str, task_id: str, times: int = 1) -> list[str]:
        """Wait until the worker has said something of a task; return the lines."""
        mark = f"[{task_id}] {text}"
        eventually(lambda: len(self.worker.lines(mark)) >= times, mark)
        return self.worker.lines(mark)

    def received(self, task_id: str, number: int) -> dict[str, Any]:
        """Wait for a delivery, counted from 0; return its message without what is its own."""
        key = f"received:{task_id}"
        text = eventually(lambda: self.client.lindex(key, number), f"delivery {number}")
        message: dict[str, Any] = loads(text)
        for name in OWN:
            message["properties"].pop(name, None)
        for name in [name for name in message["headers"] if name.startswith(OF_DELIVERY)]:
            del message["headers"][name]
        return message

    def close(self) -> None:
        disconnect(self.app)
        self.app.close()


def value(result: AsyncResult) -> Any:
    return result.get(timeout=WAIT, interval=0.05)


@contextlib.contextmanager
def holding(key: str) -> Iterator[None]:
    with lock(key, timeout=60):
        yield


def all_parked(keys: list[str]) -> None:
    def parked() -> bool:
        found = [locks["default"].waiting(key) for key in keys]
        return all(len(waiting) == 1 and waiting[0].parked for waiting in found)

    eventually(parked, "all parked")
