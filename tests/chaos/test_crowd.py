"""A crowd of processes on one semaphore, and the checker of its history."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from example_project.embedded import EmbeddedServer
from tests.chaos.crowd import CALM, FAULTS, check, run
from tests.chaos.history import Event, read

SECONDS = float(os.environ.get("LOCKS_TEST_SECONDS", "2"))


def test_crowd_on_a_semaphore(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """64 processes over 5 permits, killed and stopped at random: never more, none lost."""
    run(own_server.url(), tmp_path, SECONDS, 1, 64, 5)
    verdict = check(read(tmp_path), 5)
    assert verdict.violations == []
    assert verdict.faults.keys() == FAULTS.keys()
    assert verdict.figures["served in the calm"] == 64


def hold(process: int, at: float, fence: int) -> list[Event]:
    own = {"process": process, "handle": f"{process}.{fence}"}
    confirmed = {"kind": "confirmed", "at": at + 0.03, "since": at + 0.025, **own}
    return [{"kind": "acquired", "at": at, "fence": fence, **own}, confirmed]


LEFT = {"kind": "left", "at": 13.0, "process": 0, "keys": ["lock:crowd"]}
FAILED = {"kind": "failed", "at": 13.0, "process": 1, "trace": "KeyError"}


@pytest.mark.parametrize(
    ("extra", "idle", "rules"),
    [
        ([], [], set()),
        (hold(3, 10.062, 7), [], {"too many"}),
        (hold(3, 10.062, 1001), [], {"too many", "fence given twice"}),
        ([], range(12, 40), {"left behind"}),
        ([LEFT, FAILED], [], {"left", "failed"}),
    ],
)
def test_what_breaks_a_history(extra: list[Event], idle: list[int], rules: set[str]) -> None:
    """Of two permits that two processes hold in turn all the time."""
    events: list[Event] = [
        {"kind": "calm", "at": 10.0, "process": 0},
        {"kind": "stopped", "at": 10.0 + CALM, "process": 0},
        *extra,
    ]
    for process in (1, 2):
        for number in range(50):
            if number not in idle:
                at = 9.9 + process / 100 + number * 0.05
                events += hold(process, at, process * 1000 + number)
    assert {violation.rule for violation in check(events, 2).violations} == rules
