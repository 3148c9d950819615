"""A scrape reads the held locks, within bounds of work and of time."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
from django.test import RequestFactory
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.celery.options import Guard
from django_redis_lock.contrib import gauges
from django_redis_lock.contrib.gauges import lease_used
from django_redis_lock.contrib.prometheus.views import metrics
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.contrib.prometheus.conftest import Value
from tests.tools import counted, eventually, let_go, queue
from tests.tools.parking import parking

GROUPS = {"GROUPS": {"product:*": "product", "import:*": "import"}}


@pytest.fixture(autouse=True)
def _grouped(settings: Any, server: EmbeddedServer) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url(), "OPERATORS": GROUPS}}


def hold(name: str, timeout: float | None = 60) -> None:
    assert lock(name, timeout=timeout).acquire(blocking=False)


def test_held_locks_are_counted_by_group(value: Value) -> None:
    """A group of the settings without a held lock is 0, so that alerts end."""
    for number in range(3):
        hold(f"product:{number}")
    report = lock("report")
    report.acquire()
    assert value("server_up") == 1
    assert [value("held", group=group) for group in ("product", "import", "other")] == [3, 0, 1]
    assert value("waiting", group="product") == 0
    assert value("oldest_hold_seconds", group="product") > 0
    assert value("oldest_wait_seconds", group="product") == 0
    assert value("lease_used_ratio", group="product") == 0, "without renewal"
    eventually(lambda: value("lease_used_ratio", group="other") > 0)
    assert value("unread", what="holders") == value("unread", what="queues") == 0
    report.release()


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({}, pytest.approx(1 / 3)),
        ({"ttl": 31.0}, 0.0),
        ({"auto_renew": False, "lease": None}, 0.0),
        ({"ttl": 3.0, "max_hold": 60.0, "held_for": 57.0}, 0.0),
    ],
)
def test_used_share_of_a_lease_tells_late_renewals(fields: dict[str, Any], used: float) -> None:
    """A lease that is not to be renewed, or not in full, runs down as its holder wants it."""
    hold("report")
    renewed = {"auto_renew": True, "lease": 30.0, "ttl": 20.0, "held_for": 0.0, "max_hold": None}
    assert lease_used(replace(locks["default"].holder("report"), **{**renewed, **fields})) == used


def test_too_many_locks_and_queues_are_counted_and_some_read(
    value: Value, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    monkeypatch.setattr(gauges, "MOST_HOLDERS", 2)
    monkeypatch.setattr(gauges, "MOST_QUEUES", 1)
    for number in range(3):
        hold(f"other:{number}", 120)
    client.zadd("lock-due", {f"other:{number}": 9e15 for number in range(9)})
    hold("product:1")
    hold("import:1")
    waiting = {name: queue(lock(name, timeout=60)) for name in ("product:1", "import:1")}
    waiting["product:1"] += queue(lock("product:1", timeout=60))
    assert [value("held", group=each) for each in ("other", "product")] == [3, 1]
    assert (value("unread", what="holders"), value("unread", what="queues")) == (3, 5)
    first = locks["default"].waiting("product:1")[0]
    assert [value("waiting", group=each) for each in ("product", "import")] == [2, 1]
    assert 0 < value("oldest_wait_seconds", group="product") <= first.waited
    assert value("oldest_wait_seconds", group="import") == 0
    for name, started in waiting.items():
        let_go(name, started)


def test_permits_and_limits_are_counted_by_group(value: Value) -> None:
    """Each permit and each reader counts; an operator's limit goes before the callers'."""
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(semaphore("product:1", 5, timeout=60))
            stack.enter_context(lock("import:1", timeout=60, shared=True))
        stack.enter_context(semaphore("product:2", 4, timeout=60))
        stack.enter_context(lock("product:3", timeout=60))
        assert [value("held", group=each) for each in ("product", "import")] == [5, 3]
        assert [value("limit", group=each) for each in ("product", "import")] == [9, 0]
        locks["default"].set_limit("product:1", 3)
        locks["default"].set_limit("report", 0)
        names = {"report": 1, "product:1": 1, "import:2": 0}
        waiting = [queue(semaphore(each, n), semaphore(each, n)) for each, n in names.items()]
        gauges.forget_readings()
        assert value("limit", group="product") == 3 + 4
        assert value("waiting", group="product") == 2
        assert value("waiting", group="other") == 2, "for a semaphore that is paused"
        assert value("waiting", group="import") == 2, "though no limit is set"
        assert value("oldest_wait_seconds", group="other") > 0
        for name, started in zip(names, waiting, strict=True):
            locks["default"].set_limit(name, 10)
            assert all(each.outcome() for each in started)


def test_parked_tasks_are_counted_by_group(
    value: Value, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are among the waiters, and one call is made for their backlogs."""
    name = "import:1"
    with parking(name) as parked:
        turns = iter("ab")
        monkeypatch.setattr(Guard, "turn", lambda *_: f"={next(turns)}")
        parked.park(2)
        value("parked", group="import")  # loads the scripts
        gauges.forget_readings()
        with counted(client) as commands:
            assert value("parked", group="import") == 2
        assert commands["evalsha"] == 5, "the index, the queues, the holder, the first waiter"
        assert value("backlogs", group="import") == 2
        assert value("backlogs", group="other") == 0
        (waiting,) = queue(lock(name, timeout=60))
        gauges.forget_readings()
        assert (value("waiting", group="import"), value("parked", group="import")) == (3, 2)
        assert value("parked", group="other") == 0
        locks["default"].force_release(name)
        (holder,) = locks["default"].holders()
        assert (holder.waiters, holder.parked) == (2, 1)
        labels = {"using": "", "backend": "", "task": parked.task.name}
        assert value("tasks_parked_total", **labels) == 2
        let_go(name, [waiting])


def test_a_user_who_may_not_read_the_names_of_queues_has_the_other_gauges(
    value: Value, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = LockUnavailable("no permission")
    refusal.refused = True
    monkeypatch.setattr(gauges, "queues_of", MagicMock(side_effect=refusal))
    hold("report")
    caplog.set_level("INFO", "django_redis_lock")
    for _ in range(2):
        gauges.forget_readings()
        assert [value(each, group="other") for each in ("held", "limit")] == [1, 0]
    told = "Read gauges of LOCKS['default'] without queues: no permission"
    assert caplog.messages.count(told) == 1


def test_stopped_server_delays_a_scrape_little(
    own_server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch, value: Value
) -> None:
    monkeypatch.setattr(gauges, "PATIENCE", 0.2)
    location = f"{own_server.url()}?socket_timeout=20"
    settings.LOCKS = {
        "default": {"LOCATION": location},
        "locmem": {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"},
        "wrong": {"BACKEND": "nowhere.Backend"},  # which leaves the others
    }
    locks["default"].holder("report")
    own_server.pause()
    try:
        families = {each.name: each for each in REGISTRY.collect()}
        list(REGISTRY.collect())
        readings = [each for each in threading.enumerate() if "-gauges-default" in each.name]
        assert len(readings) == 1, "one reading at a time; no caller waits for its end"
        assert value("scrape_errors_total") == 3  # the scrape that tells it included
    finally:
        own_server.resume()
    up = families["django_redis_lock_server_up"].samples
    assert {each.labels["using"]: each.value for each in up} == {"default": 0, "locmem": 1}
    assert [each.labels["using"] for each in families["django_redis_lock_held"].samples] == [
        "locmem"
    ]
    eventually(lambda: not any("-gauges-" in each.name for each in threading.enumerate()))
    gauges.forget_readings()
    assert value("server_up") == 1


def test_a_failed_scrape_is_no_failed_operation(
    settings: Any, monkeypatch: pytest.MonkeyPatch, value: Value
) -> None:
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert (value("server_up"), value("unavailable_total")) in ((0, 0), (0, None))


def test_view_answers_in_the_format_that_is_asked_for() -> None:
    gauges.forget_readings()
    accept = "application/openmetrics-text;version=1.0.0"
    answer = metrics(RequestFactory().get("/metrics", headers={"accept": accept}))
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    families = {each.name: each for each in text_string_to_metric_families(answer.content.decode())}
    assert families["django_redis_lock_held"].type == "gauge"
    answer = metrics(RequestFactory().get("/metrics"))
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert metrics(RequestFactory().post("/metrics")).status_code == 405
