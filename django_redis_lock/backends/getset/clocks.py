"""The clocks that give the times of the SETNX and GETSET scheme."""

from __future__ import annotations

import math
import time

from redis.exceptions import ResponseError

from django_redis_lock.backends.getset.commands import PlainCommand
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.support.clock import monotonic


class ServerClock:
    """The server's clock, carried forward by the local monotonic one for a few seconds."""

    KEPT = 5.0
    """Seconds for which a reading is carried forward."""
    SLOW = 0.05
    """Seconds; an answer that took longer is too inexact for short leases."""
    TRIES = 3
    """How often to ask at most if answers are slow."""

    def __init__(self) -> None:
        self._read = -math.inf, -math.inf, 0  # asked and answered at (local), the server's ms

    def look(self) -> Steps[None]:
        """Ask the server, unless a recent reading is known."""
        if monotonic() - self._read[1] < self.KEPT:
            return
        for _ in range(self.TRIES):
            asked_at = monotonic()
            seconds, microseconds = yield from self._ask()
            answered_at = monotonic()
            kept_asked_at, kept_at, _ = self._read
            # The quickest answer counts, since several threads may ask at once.
            if (
                answered_at - kept_at >= self.KEPT
                or answered_at - asked_at < kept_at - kept_asked_at
            ):
                self._read = asked_at, answered_at, int(seconds) * 1000 + int(microseconds) // 1000
            if answered_at - asked_at < self.SLOW:
                break

    def _ask(self) -> Steps[tuple[bytes, bytes]]:
        try:
            seconds, microseconds = yield PlainCommand("TIME")
        except ResponseError as error:
            error.args = (f"{error}. {_WITHOUT_TIME}",)
            raise
        return seconds, microseconds

    def earliest_ms(self) -> int:
        """Return the earliest time it can be. The leases of others are judged by it."""
        _, answered_at, read = self._read
        return read + math.floor((monotonic() - answered_at) * 1000)

    def latest_ms(self) -> int:
        """Return the latest time it can be. Our own leases count from it."""
        asked_at, _, read = self._read
        return read + 1 + math.ceil((monotonic() - asked_at) * 1000)


_WITHOUT_TIME = (
    "Where TIME is forbidden, keep the clocks of all machines alike and write "
    "OPTIONS['CLOCK'] = 'local' on each of them"
)


class LocalClock:
    """The wall clock of this machine, which has to agree with that of all others."""

    def look(self) -> Steps[None]:
        """Ask nothing."""
        yield from ()

    def earliest_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000

    def latest_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000


Clock = ServerClock | LocalClock
