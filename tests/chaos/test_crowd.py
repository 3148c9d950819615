"""A crowd of processes on one semaphore, and the checker of its history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from example_project.embedded import EmbeddedServer
from tests.chaos.crowd import CALM, FAULTS, check, run
from tests.chaos.history import Event, read


def test_crowd_on_a_semaphore(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """64 processes over 5 permits, killed and stopped at random: never more, none lost."""
    run(own_server.url(), tmp_path, 4.0, 1, 64, 5)
    verdict = check(read(tmp_path), 5)
    assert verdict.violations == []
    assert verdict.faults.keys() == {*FAULTS}
    assert verdict.figures["served in the calm"] == 64


def history(*extra: dict[str, Any]) -> list[Event]:
    """Return the history of two permits that two processes hold in turn all the time."""
    events: list[Event] = [
        {"kind": "calm", "at": 10.0, "process": 0},
        {"kind": "stopped", "at": 10.0 + CALM, "process": 0},
    ]
    for process in (1, 2):
        for number in range(50):
            at, handle = 9.9 + process / 100 + number * 0.05, f"{process}.{number}"
            own = {"process": process, "handle": handle}
            fence = process * 1000 + number
            events.append({"kind": "acquired", "at": at, "fence": fence, **own})
            events.append({"kind": "confirmed", "at": at + 0.03, "since": at + 0.025, **own})
            events.append({"kind": "released", "at": at + 0.04, **own})
    return [*events, *extra]


def rules(events: list[Event]) -> set[str]:
    return {violation.rule for violation in check(events, 2).violations}


def test_nothing_is_found_in_a_good_history() -> None:
    assert rules(history()) == set()


@pytest.mark.parametrize("fence", [1001, 7])
def test_one_more_than_may_hold_a_permit(fence: int) -> None:
    """Which it was told at a moment at which both others were."""
    third = {"process": 3, "handle": "3.1"}
    found = rules(
        history(
            {"kind": "acquired", "at": 10.062, "fence": fence, **third},
            {"kind": "confirmed", "at": 10.2, "since": 10.1, **third},
        )
    )
    assert found == {"too many"} | ({"fence given twice"} if fence == 1001 else set())


def test_permits_that_nobody_gets() -> None:
    """They lie idle, though everybody asks all the time."""
    dropped = {f"{process}.{number}" for process in (1, 2) for number in range(12, 40)}
    idle = [event for event in history() if event.get("handle") not in dropped]
    assert rules(idle) == {"left behind"}


def test_failures_and_leftovers() -> None:
    left = {"kind": "left", "at": 13.0, "process": 0, "keys": ["lock:crowd"]}
    failed = {"kind": "failed", "at": 13.0, "process": 1, "trace": "KeyError"}
    assert rules(history(left, failed)) == {"left", "failed"}
