"""What the doctor finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from django_redis_lock.management.console.doctor.targets import Target

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
    server: str = ""
    """Which server was examined, where it was one."""


Examination = Callable[[Any, "Target"], Iterator[Finding]]
"""Takes a client of redis-py, connected to the server, and the server as an alias uses it."""
