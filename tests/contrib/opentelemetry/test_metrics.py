"""Metrics of locks, as a real SDK collects them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from celery import shared_task

from django_redis_lock import lock, locks
from django_redis_lock.celery import single_instance_task
from django_redis_lock.contrib import held, reading
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.exceptions import LockLost, LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.contrib.opentelemetry.telemetry import Telemetry
from tests.settings import server_url
from tests.tools import Background, eventually, waiters

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"


def configured(location: str = server_url()) -> dict[str, Any]:
    groups = {"test-*": "test", "import:*": "import"}
    return {"BACKEND": REDIS, "LOCATION": location, "OPERATORS": {"GROUPS": groups}}


@pytest.fixture(autouse=True)
def _groups(server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {"default": configured()}


def by_outcome(points: list[Any]) -> dict[Any, int]:
    return {point.attributes[names.OUTCOME]: point.count for point in points}


def of_group(points: list[Any], group: str = "test") -> Any:
    (point,) = [point for point in points if point.attributes[names.GROUP] == group]
    return point


def test_attempts_and_holds_are_counted_by_their_outcome(telemetry: Telemetry, name: str) -> None:
    """The count of a histogram is that of its attempts or holds; names are no attributes."""
    with lock(name):
        lock(name).acquire(blocking=False)
        lock(name).acquire(blocking_timeout=0.02)
    taken = lock(name)
    taken.acquire()
    taken.detach(10)
    metrics = telemetry.metrics()
    assert by_outcome(metrics[names.WAIT_DURATION]) == {"acquired": 2, "busy": 1, "timeout": 1}
    assert by_outcome(metrics[names.HOLD_DURATION]) == {"released": 1, "detached": 1}
    for point in metrics[names.WAIT_DURATION]:
        assert set(point.attributes) == {names.ALIAS, names.BACKEND, names.GROUP, names.OUTCOME}
        assert point.attributes[names.GROUP] == "test"
        if point.attributes[names.OUTCOME] == "timeout":
            assert point.sum >= 0.02


def test_losses_and_forced_releases_are_counted(telemetry: Telemetry, name: str) -> None:
    taken = lock(name)
    taken.acquire()
    locks["default"].force_release(name)
    with pytest.raises(LockLost):
        taken.ensure_held()
    taken = lock(name)
    taken.acquire()
    locks["default"].free(name, taken.token_id)
    metrics = telemetry.metrics()
    for what in (names.LOST, names.FORCE_RELEASED, names.FREED):
        assert of_group(metrics[what]).value == 1


def test_an_outage_is_counted(telemetry: Telemetry, name: str, settings: Any) -> None:
    settings.LOCKS = {"default": configured("redis://127.0.0.1:1")}
    with pytest.raises(LockUnavailable):
        lock(name).acquire()
    assert of_group(telemetry.metrics()[names.UNAVAILABLE]).value == 1


def test_skipped_duplicates_are_counted_by_task(telemetry: Telemetry, name: str) -> None:
    """The current span of whoever runs the duplicate tells of it, too."""

    @shared_task(name=f"tests.{name}")
    @single_instance_task
    def report() -> None: ...

    with lock(report.name, timeout=10), telemetry.tracer.start_as_current_span("run"):
        assert report.apply().result["skipped"]
    (point,) = telemetry.metrics()[names.TASKS_SKIPPED]
    assert point.value == 1
    assert point.attributes[names.TASK] == report.name
    assert point.attributes[names.POLICY] == "skip"
    attributes = telemetry.span("run").attributes
    assert attributes[names.OUTCOME] == "skipped"
    assert attributes[names.NAME] == attributes[names.TASK] == report.name
    assert names.HOLDER_PID in attributes


def test_the_gauges_tell_what_the_server_holds(telemetry: Telemetry, name: str) -> None:
    """Held locks, waiters, the oldest of both, and how much of a lease is used, by group."""
    holder = lock(name)  # is renewed
    holder.acquire()
    waiting = Background(lock(name, timeout=10).acquire)
    eventually(lambda: waiters(name) == 1)
    lock("import:1", timeout=60).acquire()
    lock("else", timeout=None).acquire()
    metrics = telemetry.metrics()
    assert {point.attributes[names.GROUP]: point.value for point in metrics[names.HELD]} == {
        "test": 1,
        "import": 1,
        "other": 1,
    }
    assert of_group(metrics[names.WAITING]).value == 1
    assert of_group(metrics[names.WAITING], "import").value == 0
    for oldest in (names.OLDEST_WAIT, names.OLDEST_HOLD):
        assert 0 < of_group(metrics[oldest]).value < 60
    assert 0 < of_group(metrics[names.LEASE_USED]).value < 1
    assert of_group(metrics[names.LEASE_USED], "other").value == 0
    holder.release()
    assert waiting.outcome()


def test_a_group_without_locks_is_zero(telemetry: Telemetry) -> None:
    """Else a graph would go on showing the last value."""
    points = telemetry.metrics()[names.HELD]
    assert {point.attributes[names.GROUP]: point.value for point in points} == {
        "test": 0,
        "import": 0,
        "other": 0,
    }


def test_the_reading_is_bounded(
    telemetry: Telemetry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All held locks are counted, but only some of them are read."""
    monkeypatch.setattr(held, "MOST_HOLDERS", 2)
    asked: list[str] = []
    read = type(locks["default"]).holders_of
    monkeypatch.setattr(
        type(locks["default"]),
        "holders_of",
        lambda self, given: read(self, asked.extend(each := [*given]) or each),
    )
    for number in range(4):
        lock(f"{name}:{number}", timeout=60).acquire()
    assert of_group(telemetry.metrics()[names.HELD]).value == 4
    assert len(asked) == 2


def test_a_server_that_does_not_answer_holds_no_collection_up(
    telemetry: Telemetry,
    own_server: EmbeddedServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collection gives it up soon, the next at once; both tell of the other servers."""
    settings.LOCKS = {"default": configured(own_server.url()), "second": configured()}
    monkeypatch.setattr(reading, "PATIENCE", 0.3)
    monkeypatch.setattr(reading, "KEPT_FOR", 0.0)

    def told() -> set[str]:
        return {point.attributes[names.ALIAS] for point in telemetry.metrics().get(names.HELD, ())}

    assert told() == {"default", "second"}
    own_server.pause()
    try:
        for _ in range(2):
            began = time.monotonic()
            eventually(lambda: told() == {"second"})
            assert time.monotonic() - began < 5  # five gauges, each read anew
        stalled = [each for each in threading.enumerate() if each.name.endswith("-gauges-default")]
        assert len(stalled) == 1
    finally:
        own_server.resume()
    stalled[0].join(20)
    assert not stalled[0].is_alive()
    eventually(lambda: told() == {"default", "second"})


def test_an_unavailable_server_has_no_gauges(telemetry: Telemetry, settings: Any) -> None:
    """The gauges of the other aliases are told."""
    settings.LOCKS = {"default": configured("redis://127.0.0.1:1"), "second": configured()}
    points = telemetry.metrics()[names.HELD]
    assert {point.attributes[names.ALIAS] for point in points} == {"second"}
