"""The findings of the doctor."""

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
    """What to do about it, if anything."""
    server: str = ""
    """The server that was examined, if it was one."""


Examination = Callable[[Any, "Target"], Iterator[Finding]]
"""Takes a redis-py client of the server, and the server as the alias uses it."""
