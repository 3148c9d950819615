"""The benchmark's targets are those that were agreed, and its page says where one is missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import markdown
from benchmarks.scenarios import SCENARIOS
from benchmarks.targets import TARGETS, judged

AGREED = {
    "uncontended:ratio.median": "at least 1.20",
    "traffic:round_trips": "at most 2",
    "handoff:ratio": "at most 1.60",
    "contended:ratio.median": "at least 0.90",
    "contended:ratio_queue.median": "at least 1.70",
    "contended:fairness.median": "at least 0.95",
    "waiting:connections": "at most 1",
    "waiting:idle_commands_per_second": "under 5",
    "waiting:out_of_order": "at most 0",
    "listing:speedup.median": "at least 50",
    "guarded:ratio.median": "at least 0.90",
}


def test_the_targets_are_those_that_were_agreed() -> None:
    """A bound that is missed is told, and not lowered."""
    assert {t.path: t.wanted() for t in TARGETS if t.row == "ours"} == AGREED


@pytest.mark.parametrize(("ratio", "verdict"), [(0.89, "**not met**"), (0.9, "met")])
def test_a_target_that_is_missed_is_told(ratio: float, verdict: str) -> None:
    """The row of the guarded task has its figure and the verdict."""
    found: dict[str, Any] = {"guarded": {"rows": {"ours": {"ratio": {"median": ratio}}}}}
    results = {
        "environment": {
            **dict.fromkeys(("date", "python", "server", "protocol", "cpus", "processor"), ""),
            "system": "",
            "load_at_start": 0.1,
            "packages": {},
        },
        "quick": False,
        "targets": list(judged(found)),
        "scenarios": {},
    }
    (line,) = [row for row in markdown(results, SCENARIOS).splitlines() if "guarded" in row]
    assert [cell.strip() for cell in line.split("|")][2:5] == [
        "at least 0.90",
        f"**{ratio:.2f}**",
        verdict,
    ]
