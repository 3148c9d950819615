"""The checkers of histories of parked tasks, and of beats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos import beats
from tests.chaos.history import Event
from tests.chaos.parked import check, forgive


def run(number: int, began: float, ended: float | None = None, **fields: Any) -> list[Event]:
    where = {"pid": number, "worker": 100, **fields}
    events = [{"what": "began", "at": began, "run": str(number), "key": "one", "number": number}]
    if ended is not None:
        events.append({"what": "ended", "at": ended, "run": str(number)})
    return [{**event, **where} for event in events]


KILLED = {"what": "killed", "at": 1.5, "pid": 1, "worker": 7}
WORKER_KILLED = {"what": "killed worker", "at": 1.5, "pid": 5, "worker": 100}


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([*run(1, 1.0, 2.0), *run(2, 2.1, 3.0)], []),
        ([*run(1, 1.0, 2.0), *run(2, 1.9, 3.0)], ["overlapping"]),
        ([*run(1, 1.0, 2.0), *run(2, 1.9, 3.0, key="three")], []),
        (run(1, 1.0, 2.0), ["lost"]),
        ([*run(1, 1.0, 2.0), *run(2, 2.1)], ["lost"]),
        ([*run(3, 1.0, pid=1), KILLED, *run(1, 1.6, 2.0, pid=3), *run(2, 2.1, 3.0)], []),
        ([*run(3, 1.0), WORKER_KILLED, *run(1, 1.6, 2.0, worker=2), *run(2, 2.1, 3, worker=2)], []),
    ],
)
def test_what_breaks_a_history(events: list[Event], rules: list[str]) -> None:
    """Of two tasks with one key, of which the first may be killed and run again."""
    assert [one.rule for one in check(events, [1, 2]).violations] == rules


def test_what_the_broker_loses_is_not_counted() -> None:
    verdict = check([], [1, 2])
    forgive(verdict, 1)
    assert [violation.text for violation in verdict.violations] == ["2"]


Tick = tuple[int, int, int]
"""A slot, the fence of who led, and its process."""


@pytest.mark.parametrize(
    ("noted", "sent", "rules"),
    [
        ([(1, 10, 7), (2, 10, 7), (5, 20, 8)], [2, 1, 5], []),
        ([(1, 10, 7), (2, 10, 7), (5, 20, 8)], [1], []),
        ([(1, 10, 7), (2, 10, 7), (5, 20, 8)], [2, 5], ["not sent"]),
        ([(1, 10, 9), (5, 20, 8), (6, 20, 8)], [6], ["not sent", "not sent"]),
        ([(1, 10, 7), (5, 20, 8)], [1, 5, 5], ["sent twice"]),
        ([(1, 10, 7), (1, 20, 8)], [1], ["noted twice"]),
        ([(1, 10, 7)], [1, 2], ["not noted"]),
    ],
)
def test_what_breaks_the_history_of_beats(
    noted: list[Tick], sent: list[int], rules: list[str]
) -> None:
    """Of beats, of which 7 was killed; the last to lead may lose what it noted last."""
    ticks = [{"name": "tick", "slot": s, "at": s, "fence": f, "pid": p} for s, f, p in noted]
    found = beats.check(ticks, [{"name": "tick", "slot": slot} for slot in sent], [7])
    assert [one.rule for one in found] == rules
