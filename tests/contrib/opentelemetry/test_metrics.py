"""Metrics of locks, as a real SDK collects them, and the page of their names."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock import lock
from django_redis_lock.contrib import gauges
from django_redis_lock.contrib import opentelemetry as names
from example_project.embedded import EmbeddedServer
from tests.contrib.opentelemetry.conftest import Telemetry
from tests.tools import queue
from tests.tools.docs import DOCS, table

PAGE = DOCS / "reference/metrics.md"


@pytest.fixture(autouse=True)
def _groups(server: EmbeddedServer, settings: Any) -> None:
    groups = {"test-*": "test", "import:*": "import"}
    settings.LOCKS = {"default": {"LOCATION": server.url(), "OPERATORS": {"GROUPS": groups}}}


def by(attribute: str, points: list[Any]) -> dict[Any, Any]:
    """Return the values of a gauge, or the counts of a histogram, by an attribute."""
    return {
        point.attributes[attribute]: point.count if hasattr(point, "count") else point.value
        for point in points
    }


def test_attempts_and_holds_are_counted_by_their_outcome(telemetry: Telemetry, name: str) -> None:
    with lock(name):
        lock(name).acquire(blocking=False)
        lock(name).acquire(blocking_timeout=0.02)
    taken = lock(name)
    taken.acquire()
    taken.detach(10)
    metrics = telemetry.metrics()
    waits = by(names.OUTCOME, metrics["django_redis_lock.wait.duration"])
    assert waits == {"acquired": 2, "busy": 1, "timeout": 1}
    holds = by(names.OUTCOME, metrics["django_redis_lock.hold.duration"])
    assert holds == {"released": 1, "detached": 1}
    for point in metrics["django_redis_lock.wait.duration"]:
        assert set(point.attributes) == {names.ALIAS, names.BACKEND, names.GROUP, names.OUTCOME}
        assert point.attributes[names.GROUP] == "test"


def test_the_gauges_tell_what_the_server_holds(telemetry: Telemetry, name: str) -> None:
    holder = lock(name)  # is renewed
    holder.acquire()
    (waiting,) = queue(lock(name, timeout=10))
    metrics = telemetry.metrics()
    for gauge in ("held", "waiting"):
        values = by(names.GROUP, metrics[f"django_redis_lock.{gauge}"])
        assert values == {"test": 1, "import": 0, "other": 0}
    for oldest in ("django_redis_lock.wait.oldest", "django_redis_lock.hold.oldest"):
        assert by(names.GROUP, metrics[oldest])["test"] > 0
    assert by(names.GROUP, metrics["django_redis_lock.lease.used"])["test"] > 0
    holder.release()
    assert waiting.outcome()


def test_the_page_names_what_the_code_makes(telemetry: Telemetry, name: str) -> None:
    with lock(name):
        pass
    metrics = telemetry.metrics().keys()
    documented = {row[1] for row in table(PAGE, "Metrics")} - {""}
    assert {f"django_redis_lock.{each}" for each in documented} == metrics
    assert metrics >= {each for each, _ in names.GAUGES.values()}
    made = {names.WAIT, names.HOLD, names.ERROR_TYPE}
    made |= {each for each in vars(names).values() if str(each).startswith("django_redis_lock.")}
    assert {row[0] for row in table(PAGE, "Spans")} == made - {names.__name__, names.__package__}
    text = " ".join(PAGE.read_text().split())
    assert f"at most {gauges.MOST_HOLDERS} locks" in text
    assert f"{gauges.MOST_QUEUES} longest queues" in text
    assert f"waits {gauges.PATIENCE:g} seconds" in text
