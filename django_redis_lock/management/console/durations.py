"""Durations as operators write them and tables show them."""

from __future__ import annotations

import argparse
import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds per unit."""
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``1.5h`` or ``1h30m``.

    Raises ``argparse.ArgumentTypeError`` naming the text.
    """
    try:
        seconds = float(text)
    except ValueError:
        parts = _PART.findall(text)
        is_whole = bool(parts) and "".join(map("".join, parts)) == text
        seconds = sum(float(amount) * UNITS[unit] for amount, unit in parts) if is_whole else -1
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; give seconds, or for example 90s, 10m, 1h30m or 2d."
        )
    return seconds


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``4.2s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m{rest:02}s"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h" if days else f"{hours}h{minutes:02}m"


def length(seconds: float) -> str:
    """Return a duration as people write it, without a zero at its end: ``10s``, ``15m``, ``2h``."""
    return re.sub(r"\.0(?=s)|(?<=[mhd])00[smh]$", "", duration(seconds))
