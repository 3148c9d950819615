"""The figures of a guard over all rounds: medians with ranges, and the sums of faults."""

import math
from collections.abc import Sequence

from benchmarks.frame.figures import Spread, ratios, spread
from benchmarks.frame.table import Row
from benchmarks.load.plan import REDIS_PY

FAULTS = ("oversold", "unsold", "errors", "barged", "bystander_errors")
"""What is added up, so that no fault of one round hides behind a median."""


def together(rounds: Sequence[Row]) -> Row:
    """Return a median with its range of each figure, the sum of each fault, and the rounds."""
    found: Row = {}
    for key in rounds[0]:
        values = [row[key] for row in rounds]
        found[key] = sum(values) if key in FAULTS else finite_spread(values)
    return {**found, "rounds": list(rounds)}


def compared(rounds: dict[str, list[Row]]) -> dict[str, Row]:
    """Return the figures of each guard in a sale, with its ratios to redis-py's in each round."""
    found = {}
    for slug, rows in rounds.items():
        row = together(rows)
        least, most = row["least_served"]["min"], row["most_served"]["max"]
        found[slug] = {
            **row,
            "served": f"{least} to {most}",
            "speed": _ratios(rounds, slug, "orders_per_second"),
            "p99_ratio": _ratios(rounds, slug, "p99"),
        }
    return found


def finite_spread(values: Sequence[float]) -> Spread | None:
    """Return the median and range; None if a round has no figure."""
    return spread(values) if all(math.isfinite(value) for value in values) else None


def _ratios(rounds: dict[str, list[Row]], slug: str, key: str) -> Spread | None:
    values, base = ([row[key] for row in rounds.get(of, [])] for of in (slug, REDIS_PY))
    if not base or not all(math.isfinite(value) for value in values):
        return None
    if not all(value > 0 for value in base):
        return None  # redis-py's has served nobody
    return ratios(values, base)
