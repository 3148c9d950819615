"""The clocks that the times of the SETNX and GETSET scheme are read from."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from time import monotonic
from typing import Any

Command = tuple[bytes | str | int, ...]
"""A command of the server, its name first."""


class ServerClock:
    """The server's clock, carried forward by the local monotonic one for a few seconds."""

    KEPT = 5.0
    """Seconds for which what it read is carried forward."""
    SLOW = 0.05
    """Seconds; an answer that took longer tells the time too badly for short leases."""
    TRIES = 3
    """How often to ask at the most, where answers are slow."""

    def __init__(self) -> None:
        self._read = -math.inf, -math.inf, 0  # asked and answered (local), and the server's ms

    def look(self) -> Generator[Command, Any, None]:
        """Ask the server, unless it was asked a moment ago."""
        if monotonic() - self._read[1] < self.KEPT:
            return
        for _ in range(self.TRIES):
            asked_at = monotonic()
            seconds, microseconds = yield ("TIME",)
            answered_at = monotonic()
            kept_asked_at, kept_at, _ = self._read
            # The best answer counts: many threads may ask at once, and one of them have to wait.
            if (
                answered_at - kept_at >= self.KEPT
                or answered_at - asked_at < kept_at - kept_asked_at
            ):
                self._read = asked_at, answered_at, int(seconds) * 1000 + int(microseconds) // 1000
            if answered_at - asked_at < self.SLOW:
                break

    def earliest_ms(self) -> int:
        """Return the time that it is at the least: by this a lease of others has passed."""
        _, answered_at, read = self._read
        return read + math.floor((monotonic() - answered_at) * 1000)

    def latest_ms(self) -> int:
        """Return the time that it is at the most: from this a lease of ours is counted."""
        asked_at, _, read = self._read
        return read + 1 + math.ceil((monotonic() - asked_at) * 1000)


class LocalClock:
    """The wall clock of this machine, which has to agree with that of every other."""

    def look(self) -> Generator[Command, Any, None]:
        """Ask nobody."""
        yield from ()

    def earliest_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000

    def latest_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000


Clock = ServerClock | LocalClock
