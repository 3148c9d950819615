"""Parked tasks that pollers publish in their threads, as in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.test import override_settings

from django_redis_lock import lock
from django_redis_lock.celery import polling
from example_project.embedded import EmbeddedServer, free_port
from tests.celery.consumer import Consumer, body
from tests.tools import eventually

WINDOW = 0.6
"""Seconds from one run to the next."""


@contextmanager
def looking(consumer: Consumer) -> Iterator[None]:
    """Look after parked tasks as each worker does."""
    polling._on_init(sender=consumer)
    polling.Pollers(consumer).start(consumer)
    yield
    polling._end_pollers()


def test_alias_whose_server_is_down_delays_no_other(
    server: EmbeddedServer, consumer: Consumer
) -> None:
    down = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    task = consumer.task(body, using="default", on_conflict="park")
    with override_settings(LOCKS={"down": down, **settings.LOCKS}), looking(consumer):
        with lock(consumer.app.main):
            consumer.deliver(consumer.send(task))
        eventually(consumer.message, "the message")
