"""Tasks that are parked in the queue of a lock, without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_app

from tests.celery.consumer import Consumer, body, held, id_of


class Parking:
    """Parks tasks of the current app, whose broker is in memory, behind a lock that is held."""

    def __init__(self, name: str, *, hold: bool = True, **options: Any) -> None:
        if not hold:
            options = {"concurrency": lambda **_: 0, **options}  # no call may run
        self.consumer = Consumer(name)
        self.task = self.consumer.task(body, using="default", on_conflict="park", **options)
        self.lock: Any = held(self.task) if hold else None

    def park(self, number: int = 1) -> list[str]:
        """Park so many tasks; return their ids."""
        sent = [self.consumer.send(self.task) for _ in range(number)]
        for message in sent:
            self.consumer.deliver(message)
        return [id_of(message) for message in sent]

    def returned(self) -> list[str]:
        """Take the messages that were sent back to the broker; return the ids of their tasks."""
        return [id_of(message) for message in iter(self.consumer.message, None)]


@contextmanager
def parking(name: str, **options: Any) -> Iterator[Parking]:
    before = current_app._get_current_object()
    made = Parking(name, **options)
    made.consumer.app.set_current()
    try:
        yield made
    finally:
        before.set_current()
        made.consumer.close()
