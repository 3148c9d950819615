"""The values of the SETNX and GETSET scheme, which tell when a lock ends, and its clock."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from django_redis_lock.protocol.calls import Step
from django_redis_lock.protocol.drivers import Steps

ENDLESS = 253_402_300_800
"""Seconds since the epoch: the year 10000. A value from there on is a lease without end."""
FORMATS = ("record", "seconds")
Word = bytes | str | int


class PlainCommand(Step):
    """A command of the server, its name first."""

    __slots__ = ("words",)

    def __init__(self, *words: Word) -> None:
        self.words = words

    def do(self, port: Any) -> Any:
        return port.send(self.words)

    async def ado(self, port: Any) -> Any:
        return await port.asend(self.words)


class ServerClock:
    """The server's clock, carried forward by the local monotonic one for a few seconds."""

    KEPT = 5.0
    """Seconds for which a reading is carried forward."""
    SLOW = 0.05
    """Seconds; an answer that took longer, such as the first, is too inexact for short leases."""
    TRIES = 3
    """How often to ask at most if answers are slow."""

    def __init__(self) -> None:
        self._read = -math.inf, -math.inf, 0  # asked and answered at (local), the server's ms

    def read(self) -> Steps[None]:
        """Ask the server, unless a recent reading is known."""
        for _ in range(self.TRIES):
            asked_at, answered_at, _ms = self._read
            if monotonic() - answered_at < self.KEPT and answered_at - asked_at < self.SLOW:
                return
            asked_at = monotonic()
            seconds, microseconds = yield PlainCommand("TIME")
            self._read = asked_at, monotonic(), int(seconds) * 1000 + int(microseconds) // 1000

    def earliest_ms(self) -> int:
        """Return the earliest time it can be. The leases of others are judged by it."""
        _, answered_at, read = self._read
        return read + math.floor((monotonic() - answered_at) * 1000)

    def latest_ms(self) -> int:
        """Return the latest time it can be. Our own leases count from it."""
        asked_at, _, read = self._read
        return read + 1 + math.ceil((monotonic() - asked_at) * 1000)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The value of a lock, as far as it can be read."""

    value: bytes
    end_ms: float
    """When the lease ends; infinite for a lease without end, or if the value is no time."""
    token: bytes = b""
    """The holder's token, if the format has it."""
    fence: int = 0
    """The fence; 0 until the holder has drawn one."""
    acquired_ms: int | None = None
    record: bytes = b""

    def passed(self, now_ms: int) -> bool:
        """Return whether the lease has ended, so that the lock may be taken."""
        return self.end_ms < now_ms

    def left_ms(self, now_ms: int) -> int:
        """Return the milliseconds left of the lease; -1 for one without end."""
        return -1 if math.isinf(self.end_ms) else max(0, int(self.end_ms) - now_ms)

    @property
    def score(self) -> str:
        """The score of the lock in the index, which is ordered by the ends of leases."""
        return "+inf" if math.isinf(self.end_ms) else str(int(self.end_ms))


_RECORD = re.compile(rb"(\d{1,16}) ([0-9a-f]{32}) (\d{1,16}) (\d{1,16}) (\{.*\})", re.DOTALL)
_SECONDS = re.compile(rb"\s*(\d{1,20}(?:\.\d{0,20})?)\s*")


def read_stamp(value: bytes) -> Stamp:
    """Read the value of a lock, in either format; seconds may have a fraction.

    A value that is no time is held until it is deleted.
    """
    if match := _RECORD.fullmatch(value):
        end, token, fence, acquired, record = match.groups()
        return Stamp(value, _end(int(end)), token, int(fence), int(acquired), record)
    if match := _SECONDS.fullmatch(value):
        return Stamp(value, _end(float(match[1]) * 1000))
    return Stamp(value, math.inf)


def _end(end_ms: float) -> float:
    return math.inf if end_ms >= ENDLESS * 1000 else end_ms


class Values:
    """Writes values in a format, and recognizes those that this process wrote.

    A value with a token tells its holder. A value that is only a time is remembered here, by token;
    there are several for a token if it is not known which of them was stored.
    """

    def __init__(self, form: str) -> None:
        self.keep_tokens = form == "record"
        self._written: dict[str, dict[bytes, Stamp]] = {}

    def write(self, stamp: Stamp) -> Stamp:
        """Return the stamp with its value."""
        endless = math.isinf(stamp.end_ms)
        if self.keep_tokens:
            end = ENDLESS * 1000 if endless else int(stamp.end_ms)
            numbers = b"%d %b %d %d " % (end, stamp.token, stamp.fence, stamp.acquired_ms or 0)
            return replace(stamp, value=numbers + stamp.record)
        # The second after the end: "current time + timeout + 1", as in the documentation of SETNX.
        # No two without end are equal.
        seconds = ENDLESS + secrets.randbelow(10**9) if endless else int(stamp.end_ms) // 1000 + 1
        return replace(stamp, value=b"%d" % seconds)

    def note(self, token: str, stamp: Stamp, now_ms: int) -> None:
        """Remember the value of a stamp."""
        if self.keep_tokens:
            return
        if len(self._written) > 1000:  # forget locks that expired
            for other, stamps in list(self._written.items()):
                if all(one.passed(now_ms) for one in list(stamps.values())):
                    self._written.pop(other, None)
        self._written.setdefault(token, {})[stamp.value] = stamp

    def discard(self, token: str, value: bytes) -> None:
        """Forget a value that was replaced."""
        self._written.get(token, {}).pop(value, None)

    def forget(self, token: str) -> None:
        """Forget all values of a token."""
        self._written.pop(token, None)

    def stamp(self, token: str, value: bytes | None) -> Stamp | None:
        """Return the stamp of a value if it belongs to a token, else ``None``."""
        if value is None:
            return None
        if self.keep_tokens:
            stamp = read_stamp(value)
            return stamp if stamp.token == token.encode() else None
        # As noted, since whole seconds tell less than we know.
        return self._written.get(token, {}).get(value)
