"""What soak and chaos print: aligned columns, and the broken rules in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from tests.rig.verdict import Violation

MOST = 12
"""Violations that are printed, so that the end of a log tells what happened."""
WIDTH = 180


def aligned(rows: Sequence[Sequence[object]], left: int = 1) -> list[str]:
    """Return the rows as lines with aligned columns, the first ``left`` of them to the left."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            str(cell).ljust(width) if index < left else str(cell).rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def headlines(violations: Sequence[Violation], where: str = "") -> list[str]:
    """Return the first violations, each in a line of bounded length."""
    lines = []
    for violation in violations[:MOST]:
        text = [line.strip() for line in violation.text.splitlines() if line.strip()]
        told = text[0] if len(text) == 1 else f"{text[0]} ... {text[-1]}"
        lines.append(f"{where}{violation.rule}: {told}"[:WIDTH])
    return lines
