"""The table that chaos prints, and the broken promises last."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.row import COLUMNS, OTHER, Row
from tests.rig.report import MOST, aligned, headlines

HEADS = (
    *("layout", "fault", "times", "locks", "unavailable"),
    *(*COLUMNS, OTHER, "LockUnavailable", "LockLost"),
)


def table(rows: Sequence[Row]) -> str:
    """Return the table; a star marks what is counted and not promised."""
    lines = aligned([HEADS, *(_cells(row) for row in rows)], left=2)
    lines.insert(1, "-" * max(map(len, lines)))
    if any("*" in line for line in lines):
        lines.append("* is not promised: see docs/explanation/failures.md")
    return "\n".join(lines)


def _cells(row: Row) -> list[object]:
    broken = row.broken()
    counts = [
        f"{row.counts[column]}{'*' if row.counts[column] > broken[column] else ''}"
        for column in (*COLUMNS, OTHER)
    ]
    errors = [row.errors[name] for name in ("LockUnavailable", "LockLost")]
    unavailable = f"{row.unavailable:.1f} s"
    return [row.layout, row.fault, row.times, row.taken, unavailable, *counts, *errors]


def broken_promises(rows: Sequence[Row], directory: str) -> str:
    """Return what was broken, in a few lines."""
    broken = [row for row in rows if row.violations]
    total = sum(len(row.violations) for row in broken)
    lines = [
        line
        for row in broken
        for line in headlines(row.violations, f"{row.fault} on {row.layout}: ")
    ][:MOST]
    first = f"{total} broken promises in {len(broken)} of {len(rows)} runs; histories: {directory}"
    more = [f"and {total - len(lines)} more"] if total > len(lines) else []
    return "\n".join([first, *lines, *more])
