"""Durations that callers and settings give, checked before anything is sent."""

from __future__ import annotations

import math
from typing import Any

LONGEST = 100 * 365 * 86400
"""Seconds; what is longer has no end, and is to be written as ``None``."""


def check_timeout(value: Any, argument: str = "timeout") -> float | None:
    """Return a lease in seconds, or ``None`` for one without end.

    Raises ``ValueError`` or ``TypeError`` naming the value: a lease has at least a millisecond.
    """
    if value is None:
        return None
    seconds = _number(value, argument)
    if seconds < 0.001:
        raise ValueError(
            f"{argument}={value!r} is no lease; give seconds of at least 0.001, "
            f"or None for a lock that never expires."
        )
    if seconds > LONGEST:
        raise ValueError(
            f"{argument}={value!r} is longer than a hundred years; "
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
            f"{argument}={value!r} is no time to wait; give seconds from 0 up, "
            f"or None to wait without limit."
        )
    return None if math.isinf(seconds) else seconds


def _number(value: Any, argument: str) -> float:
    if isinstance(value, bool):
        raise ValueError(f"{argument}={value!r} is a bool; give seconds as an int or float.")
    if not isinstance(value, int | float):
        raise TypeError(
            f"{argument} must be seconds as an int or float, not {type(value).__name__}: {value!r}."
        )
    if math.isnan(value):
        raise ValueError(f"{argument}={value!r} is not a number; give seconds.")
    return float(value)
