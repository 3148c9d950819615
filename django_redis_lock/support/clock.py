"""The clock by which leases and waits are measured, and which ``testing`` can move.

It is the system's monotonic clock. A test moves it forward, never back. The package only compares
its readings, so it can stay ahead for the rest of the process.
"""

from __future__ import annotations

import time

_ahead = 0.0


def monotonic() -> float:
    """Return the seconds of a clock that never goes back."""
    return time.monotonic() + _ahead


def move(seconds: float) -> None:
    """Move the clock forward."""
    global _ahead  # noqa: PLW0603 - the one clock of the process
    _ahead += seconds
