"""Medians, percentiles and spreads of what was measured."""

from collections.abc import Sequence
from statistics import median
from typing import TypedDict


class Spread(TypedDict):
    """The median of several rounds, and how far they lay apart."""

    min: float
    median: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Return the least, the middle and the greatest of some values."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(percent / 100 * len(ranked)))]


def ratios(values: Sequence[float], base: Sequence[float]) -> Spread | None:
    """Divide round by round: neighbours in time share the noise, which so falls out."""
    if len(values) != len(base):
        return None  # the base has failed
    return spread([a / b for a, b in zip(values, base, strict=True)])
