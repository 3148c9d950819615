"""Statistics of what was measured, and how to print them."""

from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any, TypedDict

NOTHING = "-"


class Spread(TypedDict):
    """The median of several rounds, and the range."""

    min: float
    median: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    return {"min": min(values), "median": median(values), "max": max(values)}


def middle_half(values: Sequence[float]) -> Spread:
    """Return the median of many short rounds, and the range of the middle half of them."""
    low, half, high = quantiles(values, n=4, method="inclusive")
    return {"min": low, "median": half, "max": high}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(percent / 100 * len(ranked)))]


def ratios(
    values: Sequence[float],
    base: Sequence[float],
    summary: Callable[[Sequence[float]], Spread] = spread,
) -> Spread | None:
    """Divide round by round, which cancels the noise that neighbouring measurements share."""
    if len(values) != len(base):
        return None  # the base has failed
    return summary([a / b for a, b in zip(values, base, strict=True)])


def number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def count_spread(value: Spread | None) -> str:
    """Print a median with its range."""
    if value is None:
        return NOTHING
    return f"{number(value['median'])} ({number(value['min'])} to {number(value['max'])})"


def ratio_spread(value: Spread | None) -> str:
    """Print a median ratio with its range, always with two decimals."""
    if value is None:
        return NOTHING
    return f"**{value['median']:.2f}** ({value['min']:.2f} to {value['max']:.2f})"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"**{value:.2f}**"


def breakdown(value: dict[str, float]) -> str:
    """Print counts by name, the largest first."""
    ranked = sorted(value.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number(count)}" for name, count in ranked)


def dig(row: Any, path: str) -> Any:
    """Return `row["a"]["b"]` for the path `a.b`, or None."""
    for step in path.split("."):
        row = row.get(step) if isinstance(row, dict) else None
    return row
