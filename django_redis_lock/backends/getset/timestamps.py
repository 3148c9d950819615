"""The values of the SETNX and GETSET scheme: when a lock ends, in the formats that are in use."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass, replace

from django_redis_lock.backends.getset.clocks import Clock

ENDLESS = 253_402_300_800
"""Seconds since the epoch: the year 10000. A value from there on is a lease without end."""


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


class Form:
    """The format in which values are written. All formats are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keeps_tokens = name == "record"
        """Whether a value has the holder's token; otherwise it is only a time."""
        self.never_alike = name in ("record", "fractions")
        """Whether no two holders write equal values."""

    def stamp(self, end_ms: float, token: str, now_ms: int, record: str) -> Stamp:
        """Return the stamp of a new lease that ends at ``end_ms``."""
        return self.write(Stamp(b"", end_ms, token.encode(), 0, now_ms, record.encode()))

    def write(self, stamp: Stamp) -> Stamp:
        """Return the stamp with its value."""
        return replace(stamp, value=_WRITERS[self.name](stamp))


def _record(stamp: Stamp) -> bytes:
    end = ENDLESS * 1000 if math.isinf(stamp.end_ms) else int(stamp.end_ms)
    numbers = b"%d %b %d %d " % (end, stamp.token, stamp.fence, stamp.acquired_ms or 0)
    return numbers + stamp.record


def _seconds(stamp: Stamp) -> bytes:
    if math.isinf(stamp.end_ms):
        return b"%d" % (ENDLESS + secrets.randbelow(10**9))  # so that no two are equal
    # The second after the end: "current time + timeout + 1", as in the documentation of SETNX.
    return b"%d" % (int(stamp.end_ms) // 1000 + 1)


def _fractions(stamp: Stamp) -> bytes:
    if math.isinf(stamp.end_ms):
        return b"%b.%06d" % (_seconds(stamp), secrets.randbelow(10**6))
    seconds, thousandths = divmod(int(stamp.end_ms), 1000)
    # Random microseconds, so that no two are equal.
    return b"%d.%03d%03d" % (seconds, thousandths, secrets.randbelow(1000))


def _milliseconds(stamp: Stamp) -> bytes:
    if math.isinf(stamp.end_ms):
        return b"%d" % (ENDLESS * 1000 + secrets.randbelow(10**12))
    return b"%d" % int(stamp.end_ms)


_WRITERS = {
    "record": _record,
    "seconds": _seconds,
    "fractions": _fractions,
    "milliseconds": _milliseconds,
}
FORMATS = tuple(_WRITERS)


_RECORD = re.compile(rb"(\d{1,16}) ([0-9a-f]{32}) (\d{1,16}) (\d{1,16}) (\{.*\})", re.DOTALL)
_NUMBER = re.compile(rb"\s*(\d{1,20}(?:\.\d{0,20})?)\s*")


def read_stamp(value: bytes) -> Stamp:
    """Read the value of a lock, in any format.

    The size of a number tells whether it is in seconds, milliseconds or microseconds: from the year
    2002 to 33000 these do not overlap. A value that is no time is held until it is deleted.
    """
    if match := _RECORD.fullmatch(value):
        end, token, fence, acquired, record = match.groups()
        return Stamp(value, _end(int(end)), token, int(fence), int(acquired), record)
    if match := _NUMBER.fullmatch(value):
        number = float(match[1])
        if number < 1e12:
            return Stamp(value, _end(number * 1000))
        return Stamp(value, _end(number if number < 1e15 else number / 1000))
    return Stamp(value, math.inf)


def _end(end_ms: float) -> float:
    return math.inf if end_ms >= ENDLESS * 1000 else end_ms


class OwnValues:
    """Recognizes the values that this process wrote.

    A value with a token tells its holder. A value that is only a time is remembered here, by token;
    there are several for a token if it is not known which of them was stored.
    """

    def __init__(self, form: Form, clock: Clock) -> None:
        self._form = form
        self._clock = clock
        self._written: dict[str, dict[bytes, Stamp]] = {}

    def note(self, token: str, stamp: Stamp) -> None:
        """Remember the value of a stamp."""
        if self._form.keeps_tokens:
            return
        if len(self._written) > 1000:  # forget locks that expired
            now_ms = self._clock.earliest_ms()
            for other, stamps in list(self._written.items()):
                if all(one.passed(now_ms) for one in list(stamps.values())):
                    self._written.pop(other, None)
        self._written.setdefault(token, {})[stamp.value] = stamp

    def discard(self, token: str, value: bytes) -> None:
        """Forget a value that was not stored or was replaced."""
        self._written.get(token, {}).pop(value, None)

    def forget(self, token: str) -> None:
        """Forget all values of a token."""
        self._written.pop(token, None)

    def stamp(self, token: str, value: bytes | None) -> Stamp | None:
        """Return the stamp of a value if it belongs to a token, else ``None``."""
        if value is None:
            return None
        if self._form.keeps_tokens:
            stamp = read_stamp(value)
            return stamp if stamp.token == token.encode() else None
        # As noted, since whole seconds tell less than we know.
        return self._written.get(token, {}).get(value)
