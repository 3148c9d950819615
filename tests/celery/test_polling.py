"""Parked tasks that pollers publish in their threads, as in a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
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


@pytest.fixture
def look(server: EmbeddedServer, consumer: Consumer, monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setattr(polling, "POLL_EVERY", WINDOW / 4)
    with looking(consumer):
        yield


@pytest.mark.usefixtures("look")
@pytest.mark.parametrize("number", [1, 2])
def test_spread_task_runs_as_often_as_it_may(consumer: Consumer, number: int) -> None:
    """All calls, in order, and no more in a window than there are permits."""
    ran: list[int] = []
    starts: list[float] = []

    def work(each: int) -> None:
        ran.append(each)
        starts.append(time.monotonic())

    options = {"using": "default", "concurrency": number, "at_least_for": WINDOW}
    task = consumer.task(work, on_conflict="park", **options)
    for each in range(3 * number):
        task.delay(each)
    while len(ran) < 3 * number:
        consumer.deliver(eventually(consumer.message))
    assert ran == list(range(3 * number))
    assert min(b - a for a, b in zip(starts, starts[number:], strict=False)) > WINDOW - 0.05


def test_alias_whose_server_is_down_delays_no_other(
    server: EmbeddedServer, consumer: Consumer
) -> None:
    down = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    task = consumer.task(body, using="default", on_conflict="park")
    with override_settings(LOCKS={"down": down, **settings.LOCKS}), looking(consumer):
        with lock(consumer.app.main):
            consumer.deliver(consumer.send(task))
        eventually(consumer.message, "the message")
