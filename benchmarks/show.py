"""Numbers as people read them."""

from typing import Any

from .stats import Spread

NOTHING = "-"


def number(value: float | None) -> str:
    """Print with as many digits as the size deserves."""
    if value is None:
        return NOTHING
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _spread(value: Spread | None) -> str:
    if value is None:
        return NOTHING
    return f"{number(value['median'])} ({number(value['min'])} to {number(value['max'])})"


def count_spread(value: Spread | None) -> str:
    """Print a median with its least and greatest."""
    return _spread(value)


def ratio_spread(value: Spread | None) -> str:
    """Print a median ratio with its least and greatest, always with two digits."""
    if value is None:
        return NOTHING
    return f"**{value['median']:.2f}** ({value['min']:.2f} to {value['max']:.2f})"


def ratio(value: float | None) -> str:
    """Print one ratio."""
    return NOTHING if value is None else f"**{value:.2f}**"


def breakdown(value: dict[str, float]) -> str:
    """Print counts by name, the greatest first."""
    ranked = sorted(value.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number(count)}" for name, count in ranked)


def dig(row: dict[str, Any], path: str) -> Any:
    """Return `row["a"]["b"]` for the path `a.b`, or None."""
    value: Any = row
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
