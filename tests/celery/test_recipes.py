"""What the how-to makes of the options: debounce, collect, throttle and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_lock import lock
from django_redis_lock.celery import polling
from example_project.embedded import EmbeddedServer, free_port
from tests.celery.consumer import Consumer, body, is_free
from tests.tools import eventually

WINDOW = 0.6
"""Seconds of a countdown, or from one run to the next."""


class Worker:
    """Delivers messages when they are due, and notes what the runs were given, and when."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.ran: list[int] = []
        self.starts: list[float] = []
        self.results: list[Any] = []
        self._waiting: list[Any] = []

    def task(self, **guard: Any) -> Any:
        def work(number: int) -> str:
            self.ran.append(number)
            self.starts.append(time.monotonic())
            return "ran"

        return self.consumer.task(work, **guard)

    def serve(self, seconds: float = 10.0, until: Callable[[], bool] = lambda: False) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            if message := self.consumer.message():
                self._waiting.append(message)
            for message in filter(_is_due, list(self._waiting)):
                self._waiting.remove(message)
                self.results.append(self.consumer.deliver(message))
            time.sleep(0.005)

    def intervals(self, apart: int = 1) -> list[float]:
        """Return the seconds from each start to one of the next."""
        return [b - a for a, b in zip(self.starts, self.starts[apart:], strict=False)]


def _is_due(message: Any) -> bool:
    eta = message.headers["eta"]
    return eta is None or datetime.fromisoformat(eta) <= datetime.now(UTC)


@pytest.fixture
def worker(consumer: Consumer) -> Worker:
    return Worker(consumer)


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


def test_debounced_task_runs_once_after_the_last_call(worker: Worker) -> None:
    """With the newest arguments; the other calls succeed without a run."""
    task = worker.task(scope="queue", on_conflict="supersede")
    for number in range(4):
        task.apply_async((number,), countdown=WINDOW)
        last = time.monotonic()
        worker.serve(WINDOW / 4)
    worker.serve(until=lambda: len(worker.results) == 4)
    assert worker.ran == [3]
    assert worker.starts[0] - last > WINDOW - 0.05  # of the clocks of both
    assert [result["reason"] for result in worker.results[:3]] == (
        ["superseded by newer arguments"] * 3
    )
    assert is_free(task)


def test_debounced_task_runs_though_calls_never_cease(worker: Worker) -> None:
    """After ``supersede_for`` and twice the countdown at the latest."""
    task = worker.task(scope="queue", on_conflict="supersede", supersede_for=WINDOW)
    began = time.monotonic()
    while not worker.ran and time.monotonic() - began < 10 * WINDOW:
        task.apply_async((len(worker.results),), countdown=WINDOW)
        worker.serve(WINDOW / 8)
    assert worker.ran


def test_collected_calls_are_one_run_a_while_after_the_first(worker: Worker) -> None:
    """One message for all of them; a call after its start is the first of the next run."""
    task = worker.task(scope="queue")
    began = time.monotonic()
    sent = set()
    for number in range(4):
        sent.add(task.apply_async((number,), countdown=WINDOW).id)
        worker.serve(WINDOW / 8)
    assert len(sent) == 1
    worker.serve(until=lambda: bool(worker.ran))
    assert worker.starts[0] - began > WINDOW - 0.05
    task.apply_async((9,), countdown=0.1)
    worker.serve(until=lambda: len(worker.ran) == 2)
    assert worker.ran == [0, 9]


def test_throttled_task_drops_what_comes_too_soon(worker: Worker) -> None:
    task = worker.task(at_least_for=WINDOW)
    for number in range(10):
        task.delay(number)
        worker.serve(WINDOW / 4)
    assert worker.ran[0] == 0
    assert 1 < len(worker.ran) < 10
    assert min(worker.intervals()) > WINDOW - 0.05
    skipped = [result["skipped"] for result in worker.results if result != "ran"]
    assert len(skipped) == 10 - len(worker.ran)


def test_throttled_task_does_not_lose_the_last_call(worker: Worker) -> None:
    """One message waits for the rest to end, and stands for the calls until then."""
    task = worker.task(scope="queue", at_least_for=WINDOW, countdown=0.1)
    sent = []
    for number in range(4):
        sent.append(task.delay(number).id)
        worker.serve(WINDOW / 8)
    worker.serve(until=lambda: len(worker.ran) == 2)
    assert worker.ran == [0, 1]
    assert sent[1:] == [sent[1]] * 3
    assert worker.intervals()[0] > WINDOW - 0.05


@pytest.mark.usefixtures("look")
@pytest.mark.parametrize("number", [1, 2])
def test_spread_task_runs_as_often_as_it_may(worker: Worker, number: int) -> None:
    """All calls, in order, and no more in a window than there are permits."""
    task = worker.task(using="default", concurrency=number, at_least_for=WINDOW, on_conflict="park")
    for each in range(3 * number):
        task.delay(each)
    worker.serve(until=lambda: len(worker.ran) == 3 * number)
    assert worker.ran == list(range(3 * number))
    assert min(worker.intervals(number)) > WINDOW - 0.05


def test_spread_task_runs_where_none_can_be_parked(worker: Worker) -> None:
    """As long as there is room."""
    worker.task(at_least_for=60, on_conflict="park").delay(1)
    worker.serve(until=lambda: bool(worker.results))
    assert worker.results == ["ran"]


def test_alias_whose_server_is_down_delays_no_other(
    server: EmbeddedServer, consumer: Consumer
) -> None:
    down = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    task = consumer.task(body, using="default", on_conflict="park")
    with override_settings(LOCKS={"down": down, **settings.LOCKS}), looking(consumer):
        with lock(consumer.app.main):
            consumer.deliver(consumer.send(task))
        eventually(consumer.message, "the message")
