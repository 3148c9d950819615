"""Durations that callers and settings give, checked before anything is sent."""

from __future__ import annotations

import math
from typing import Any

LONGEST = 100 * 365 * 86400
"""Seconds; what is longer has no end, and is to be written as ``None``. The scripts take a lease of
126 years or more for nonsense of another program."""

MOST_SHOWN = 60
"""Characters of a wrong value that a message repeats."""


def check_timeout(value: Any, argument: str = "timeout") -> float | None:
    """Return a lease in seconds, or ``None`` for one without end.

    Raises ``ValueError`` or ``TypeError`` naming the value: a lease has at least a millisecond.
    """
    if value is None:
        return None
    seconds = _number(value, argument)
    if seconds < 0.001:
        raise ValueError(
            f"{argument}={_shown(value)} is no lease; give seconds of at least 0.001, "
            f"or None for a lock that never expires."
        )
    if seconds > LONGEST:
        raise ValueError(
            f"{argument}={_shown(value)} is longer than a hundred years; "
            f"write None for a lock that never expires."
        )
    return seconds


def check_wait(value: Any, argument: str = "blocking_timeout") -> float | None:
    """Return how long to wait in seconds, ``None`` for without limit.

    Raises ``ValueError`` or ``TypeError`` naming the value.
    """
    if value is None:
        return None
    seconds = _number(value, argument)
    if seconds < 0:
        raise ValueError(
            f"{argument}={_shown(value)} is no time to wait; give seconds from 0 up, "
            f"or None to wait without limit."
        )
    return None if math.isinf(seconds) else seconds


def check_max_hold(value: Any) -> float | None:
    """Return for how many seconds a lock is renewed at the most, ``None`` for without limit.

    Raises ``ValueError`` or ``TypeError`` naming the value.
    """
    if value is None:
        return None
    seconds = _number(value, "max_hold")
    if seconds < 0.001:
        raise ValueError(
            f"max_hold={_shown(value)} is no time to hold a lock; give seconds of at least 0.001, "
            f"or None for no limit."
        )
    return None if seconds > LONGEST else seconds


def _number(value: Any, argument: str) -> float:
    if isinstance(value, bool):
        raise ValueError(f"{argument}={_shown(value)} is a bool; give seconds as an int or float.")
    if not isinstance(value, int | float):
        raise TypeError(
            f"{argument} must be seconds as an int or float, "
            f"not {type(value).__name__}: {_shown(value)}."
        )
    try:
        seconds = float(value)
    except OverflowError:  # an int beyond all floats
        seconds = math.inf if value > 0 else -math.inf
    if math.isnan(seconds):
        raise ValueError(f"{argument}={_shown(value)} is not a number; give seconds.")
    return seconds


def _shown(value: Any) -> str:
    """Return a value as it was given, but no more of it than fits in a message."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no int of thousands of digits
        return "(a number of thousands of digits)"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
