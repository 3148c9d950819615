"""The values of the SETNX and GETSET scheme: when a lock ends, in the forms that programs write."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass, replace

ENDLESS = 253_402_300_800
"""Seconds: the first of the year 10000. A value from there on is a lease without end."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is stored under a lock's key, as far as it can be read."""

    value: bytes
    end_ms: float
    """When the lease ends; infinite for one without end, and for what is no time at all."""
    token: bytes = b""
    """Whose it is, where the form tells."""
    fence: int = 0
    """The fence; 0 before the holder has drawn one."""
    acquired_ms: int | None = None
    record: bytes = b""

    def passed(self, now_ms: int) -> bool:
        """Return whether the lease has ended, so that anybody may take the lock."""
        return self.end_ms < now_ms

    def left_ms(self, now_ms: int) -> int:
        """Return what is left of the lease, -1 for one without end."""
        return -1 if math.isinf(self.end_ms) else max(0, int(self.end_ms) - now_ms)

    @property
    def score(self) -> str:
        """The lock's place in the index, which is ordered by the ends of leases."""
        return "+inf" if math.isinf(self.end_ms) else str(int(self.end_ms))


class Form:
    """How the values are written. Any form is read, whichever is written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keeps_tokens = name == "record"
        """Whether the value says whose it is; otherwise it is nothing but a time."""
        self.never_alike = name in ("record", "fractions")
        """Whether no two holders write the same value."""

    def stamp(self, end_ms: float, token: str, now_ms: int, record: str) -> Stamp:
        """Return what is to be stored for a lease that ends at ``end_ms``."""
        return self.write(Stamp(b"", end_ms, token.encode(), 0, now_ms, record.encode()))

    def write(self, stamp: Stamp) -> Stamp:
        """Return the same with the value that says so."""
        return replace(stamp, value=_WRITERS[self.name](stamp))


def _record(stamp: Stamp) -> bytes:
    end = ENDLESS * 1000 if math.isinf(stamp.end_ms) else int(stamp.end_ms)
    numbers = b"%d %b %d %d " % (end, stamp.token, stamp.fence, stamp.acquired_ms or 0)
    return numbers + stamp.record


def _seconds(stamp: Stamp) -> bytes:
    if math.isinf(stamp.end_ms):
        return b"%d" % (ENDLESS + secrets.randbelow(10**9))  # so that no two are alike
    # The whole second after the end: "current time + timeout + 1", as it is taught.
    return b"%d" % (int(stamp.end_ms) // 1000 + 1)


def _fractions(stamp: Stamp) -> bytes:
    if math.isinf(stamp.end_ms):
        return b"%b.%06d" % (_seconds(stamp), secrets.randbelow(10**6))
    seconds, milliseconds = divmod(int(stamp.end_ms), 1000)
    # Microseconds by chance, so that no two are alike.
    return b"%d.%03d%03d" % (seconds, milliseconds, secrets.randbelow(1000))


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
    """Read what is stored under a lock's key, in whichever form.

    A number is taken for seconds, milliseconds or microseconds by its size: the three meet in no
    year from 2002 to 33000. What is no time is held until it is deleted.
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


def _end(milliseconds: float) -> float:
    return math.inf if milliseconds >= ENDLESS * 1000 else milliseconds
