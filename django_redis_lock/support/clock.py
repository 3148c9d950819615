"""The clock by which leases and waits are measured: the system's monotonic clock."""

from __future__ import annotations

import time


def monotonic() -> float:
    """Return the seconds of a clock that never goes back."""
    return time.monotonic()
