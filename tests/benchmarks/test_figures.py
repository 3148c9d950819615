"""The benchmark's targets are the agreed ones, and its page says which are missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.frame.targets import judged
from benchmarks.report import TARGETS, markdown
from benchmarks.scenarios import SCENARIOS

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
    """A missed bound is reported, not lowered."""
    found = {
        f"{target.row.removesuffix('.rows.ours')}:{target.figure}": target.wanted()
        for target in TARGETS
        if target.row.endswith(".rows.ours")
    }
    assert found == AGREED


@pytest.mark.parametrize(("ratio", "verdict"), [(0.89, "**not met**"), (0.9, "met")])
def test_a_missed_target_is_reported(ratio: float, verdict: str) -> None:
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
        "targets": list(judged(found, TARGETS)),
        "scenarios": {},
    }
    (line,) = [row for row in markdown(results, SCENARIOS).splitlines() if "guarded" in row]
    assert [cell.strip() for cell in line.split("|")][2:5] == [
        "at least 0.90",
        f"**{ratio:.2f}**",
        verdict,
    ]
