"""The violations of a run, written down with the events around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.rig.history import Event, read
from tests.rig.verdict import Violation

AROUND = 1.0
"""Seconds around a violation from which the driver's events are shown."""
MOST = 50
"""Violations that are written down."""
BLOCKS, LINES, WIDTH = 2, 12, 240
"""Size of an excerpt: violations, lines of each, and characters of a line."""


def write_violations(directory: str | Path, violations: Sequence[Violation]) -> Path:
    """Write the violations with the events of their handles, and return where."""
    # Those without handles come first: a process that hangs or died explains the rest.
    chosen = sorted(violations, key=lambda item: (bool(item.handles), item.moment))[:MOST]
    theirs: dict[str, list[Event]] = {
        handle: [] for violation in chosen for handle in violation.handles
    }
    of_driver: list[Event] = []
    for event in read(directory):
        if event["process"] == 0:
            of_driver.append(event)
        elif event.get("handle") in theirs:
            theirs[event["handle"]].append(event)
    path = Path(directory) / "violations.txt"
    path.write_text("\n".join(_written_out(item, theirs, of_driver) for item in chosen))
    return path


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


def excerpt(path: Path) -> str:
    """Return the first violations, short enough to be in the end of a log."""
    blocks = path.read_text().strip().split("\n\n")[:BLOCKS]
    lines = [line for block in blocks for line in block.splitlines()[:LINES]]
    return "\n".join(line[:WIDTH] for line in lines if '"clock"' not in line)
