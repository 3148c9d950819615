"""Targets: bounds on figures of ours, and whether a run has met them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import ge, le, lt
from typing import Any

from benchmarks.frame.figures import dig, number
from benchmarks.frame.table import grid

BOUNDS = {ge: "at least", le: "at most", lt: "under"}


@dataclass(frozen=True)
class Target:
    """A bound on one figure of one row; `row` is the path of the row in the results."""

    what: str
    row: str
    figure: str
    meets: Callable[[Any, Any], Any]
    bound: float

    def wanted(self) -> str:
        return f"{BOUNDS[self.meets]} {number(self.bound)}"


def judged(results: dict[str, Any], targets: Iterable[Target]) -> Iterator[dict[str, Any]]:
    """Yield each target whose row was measured, with the figure and the verdict."""
    for target in targets:
        row = dig(results, target.row)
        if row is not None:
            value = dig(row, target.figure)
            met = value is not None and bool(target.meets(value, target.bound))
            yield {"what": target.what, "target": target.wanted(), "value": value, "met": met}


def verdicts(found: Iterable[dict[str, Any]]) -> str:
    rows = [
        (
            target["what"],
            target["target"],
            "not measured" if target["value"] is None else f"**{number(target['value'])}**",
            "met" if target["met"] else "**not met**",
        )
        for target in found
    ]
    return grid(("what", "target", "measured", ""), rows)
