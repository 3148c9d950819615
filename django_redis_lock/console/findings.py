"""What the doctor finds."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(NamedTuple):
    """The outcome of one examination."""

    status: str
    """``ok``, ``warn`` or ``fail``."""
    check: str
    """What was examined."""
    found: str
    """What was found."""
    remedy: str = ""
    """The way out, where one is needed."""
