"""``manage.py locks show``: the last hour of a lock's group."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.management.console.durations import about
from django_redis_lock.protocol.contention import SLOT, Contention
from tests.tools.console import command

pytestmark = pytest.mark.usefixtures("no_workers", "on")


@pytest.fixture
def on(server: Any, settings: Any, db: None) -> None:
    """One alias that counts, on the session's server."""
    operators = {"CONTENTION": True, "GROUPS": {"product:*": "product"}}
    settings.LOCKS = {"default": {"LOCATION": server.url(), "OPERATORS": operators}}


@pytest.fixture
def busy(client: redis.Redis) -> None:
    """A group in which something has happened, twenty minutes ago and now."""
    now = client.time()[0] // SLOT
    counts = {str(now - 4): "D19f30x7", str(now): "K1y2z1"}
    client.hset("lock-contention:product", mapping=counts)


@pytest.mark.usefixtures("busy")
def test_the_hour_of_a_held_lock_is_shown() -> None:
    """Below the holder, in a few lines."""
    with lock("product:1", timeout=20):
        done = command("show", "product:1")
    assert done.code == 0
    begin = done.lines.index("Last hour of group product")
    assert done.lines[begin + 1 :] == [
        "  acquired    30",
        "  waited      p50 about 35ms, p95 about 48ms",
        "  held        p50 about 8ms, p95 about 10ms",
        "  refused     7 busy, 2 timed out",
        "  lost        1",
    ]


@pytest.mark.usefixtures("busy")
def test_the_hour_is_shown_if_nobody_holds_the_lock() -> None:
    """The exit code says all the same that it is not held."""
    done = command("show", "product:2")
    assert done.code == 3
    assert done.lines[:3] == [
        "product:2 (backend default)",
        "  Not held.",
        "Last hour of group product",
    ]


@pytest.mark.usefixtures("busy")
def test_json_has_the_hour_and_its_parts() -> None:
    with lock("product:1", timeout=20):
        done = command("show", "product:1", "--json")
    ((hour,),) = ([each["contention"] for each in json.loads(done.out)["locks"]],)
    assert (hour["group"], hour["acquired"], hour["busy"], hour["lost"]) == ("product", 30, 7, 1)
    assert hour["held"] == {"p50": 0.008, "p95": 0.01}
    assert len(hour["slots"]) == 12
    assert [slot["timed_out"] for slot in hour["slots"] if slot["timed_out"]] == [2]
    assert hour["slots"][0]["waited"] == {"p50": None, "p95": None}
    assert hour["slots"][0]["began"] == hour["began"]


def test_locks_in_no_group_are_named_so() -> None:
    with lock("single", timeout=20):
        locks["default"].send_counts()
        lines = command("show", "single").lines
    begin = lines.index("Last hour of all locks in no group")
    assert lines[begin + 1] == "  acquired    1"
    assert lines[begin + 3 :] == [
        "  held        -",
        "  refused     0 busy, 0 timed out",
        "  lost        0",
    ]


def test_nothing_is_shown_if_it_is_switched_off(server: Any, settings: Any) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url()}}
    with lock("product:1", timeout=20):
        assert "Last hour" not in command("show", "product:1").out
        (known,) = json.loads(command("show", "product:1", "--json").out)["locks"]
    assert "contention" not in known


def test_an_hour_that_is_not_known_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text in the table, null in JSON, and the exit code of what is not known."""

    def refuse(name: str) -> Contention:
        raise LockUnavailable("No.")

    monkeypatch.setattr(locks["default"], "contention", refuse)
    with lock("product:1", timeout=20):
        done = command("show", "product:1")
        (known,) = json.loads(command("show", "product:1", "--json").out)["locks"]
    assert done.code == 2
    assert done.lines[-2:] == ["Last hour of group product", "  Not known."]
    assert known["contention"] is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "under 1ms"),
        (0.0234, "about 23ms"),
        (0.9999, "about 1.0s"),
        (75, "about 1m15s"),
    ],
)
def test_estimates_are_told_as_such(seconds: float, text: str) -> None:
    assert about(seconds) == text
