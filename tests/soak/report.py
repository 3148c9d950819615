"""The table that a run prints, and the file with the events around each violation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.soak.faults import FAULTS
from tests.soak.history import Event, read
from tests.soak.plan import Plan
from tests.soak.verdict import Verdict, Violation

LEAST = {"acquisitions": 100, "pairs in line compared": 1}
AROUND = 1.0
"""Seconds around a violation from which the driver's events are shown."""
MOST = 50
"""Violations that are written out."""
TOLD, LINES_TOLD, LONGEST_LINE = 2, 12, 240
"""Violations of which an excerpt is printed, its lines for each, and characters of a line."""


def table(plan: Plan, verdict: Verdict) -> str:
    """Return the summary of a run."""
    rows: dict[str, object] = {
        "seconds": f"{plan.seconds:g}",
        "seed": plan.seed,
        "processes": len(plan.crew()),
        "callers": sum(role.callers for role in plan.crew()),
        "locks": len(plan.all_names()),
        **{key: f"{value:g}" for key, value in verdict.figures.items()},
        **{f"fault: {what}": count for what, count in sorted(verdict.faults.items())},
        "violations": len(verdict.violations),
    }
    width = max(map(len, rows))
    lines = [f"{key:<{width}}  {value}" for key, value in rows.items()]
    rules = Counter(violation.rule for violation in verdict.violations)
    lines += [f"{'  ' + rule:<{width}}  {count}" for rule, count in rules.most_common()]
    return "\n".join(lines)


def lacking(verdict: Verdict) -> list[str]:
    """Return what a run must have for its cleanness to mean anything, and has not."""
    few = [name for name, least in LEAST.items() if verdict.figures[name] < least]
    return [fault for fault in FAULTS if not verdict.faults.get(fault)] + few


def write_violations(plan: Plan, verdict: Verdict) -> Path:
    """Write the violations with the events of their handles, and return where."""
    # Without handles come first: a process that hangs or died explains the rest.
    chosen = sorted(verdict.violations, key=lambda item: (bool(item.handles), item.moment))[:MOST]
    wanted = {handle for violation in chosen for handle in violation.handles}
    theirs: dict[str, list[Event]] = {handle: [] for handle in wanted}
    of_driver: list[Event] = []
    for event in read(plan.directory):
        if event["process"] == 0:
            of_driver.append(event)
        elif event.get("handle") in wanted:
            theirs[event["handle"]].append(event)
    path = Path(plan.directory) / "violations.txt"
    path.write_text("\n".join(_written_out(item, theirs, of_driver) for item in chosen))
    return path


def excerpt(path: Path) -> str:
    """Return the first violations as they were written, so short that the end of a log has them."""
    blocks = path.read_text().strip().split("\n\n")[:TOLD]
    lines = [line for block in blocks for line in block.splitlines()[:LINES_TOLD]]
    return "\n".join(line[:LONGEST_LINE] for line in lines if '"clock"' not in line)


def _written_out(
    violation: Violation, theirs: dict[str, list[Event]], of_driver: list[Event]
) -> str:
    events = [event for handle in violation.handles for event in theirs[handle]]
    moments = [event["at"] for event in events] or [violation.moment]
    start, end = min(moments) - AROUND, max(moments) + AROUND
    events += [event for event in of_driver if start <= event["at"] <= end]
    lines = [f"{violation.rule}: {violation.text}"]
    lines += [json.dumps(event) for event in sorted(events, key=lambda event: event["at"])]
    return "\n".join(lines) + "\n"
