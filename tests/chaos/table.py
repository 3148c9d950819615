"""What is printed: the table, what its stars mean, and the broken promises last."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.row import COLUMNS, OTHER, Row

HEADS = (
    "layout",
    "fault",
    "times",
    "locks",
    "unavailable",
    *COLUMNS,
    OTHER,
    "LockUnavailable",
    "LockLost",
)
MOST = 12
"""Broken promises that are told, so that the end of a log tells what happened."""
WIDTH = 180


def table(rows: Sequence[Row]) -> str:
    """Return the table; a star marks what is counted and not promised."""
    cells = [HEADS, *(_cells(row) for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(HEADS))]
    lines = ["  ".join(_placed(line, widths)).rstrip() for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if any("*" in line for line in lines):
        lines.append("* is not promised: see docs/explanation/faults.md")
    return "\n".join(lines)


def _placed(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.ljust(width) if index < 2 else text.rjust(width)
        for index, (text, width) in enumerate(zip(line, widths, strict=True))
    ]


def _cells(row: Row) -> tuple[str, ...]:
    broken = row.broken()
    counts = []
    for column in (*COLUMNS, OTHER):
        count = row.counts[column]
        star = "*" if count > broken[column] else ""
        counts.append(f"{count}{star}")
    return (
        row.layout,
        row.fault,
        str(row.times),
        str(row.taken),
        f"{row.unavailable:.1f} s",
        *counts,
        str(row.errors["LockUnavailable"]),
        str(row.errors["LockLost"]),
    )


def broken_promises(rows: Sequence[Row], directory: str) -> str:
    """Return what was broken, in a few lines."""
    found = [(row, violation) for row in rows for violation in row.violations]
    runs = len({(row.layout, row.fault) for row, _ in found})
    lines = [f"{len(found)} broken promises in {runs} of {len(rows)} runs; histories: {directory}"]
    for row, violation in found[:MOST]:
        told = [line.strip() for line in violation.text.splitlines() if line.strip()]
        text = told[0] if len(told) == 1 else f"{told[0]} ... {told[-1]}"
        lines.append(f"{row.fault} on {row.layout}: {violation.rule}: {text}"[:WIDTH])
    if len(found) > MOST:
        lines.append(f"and {len(found) - MOST} more")
    return "\n".join(lines)
