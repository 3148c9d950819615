"""How often the locks of a group were waited for, held, refused and lost within the last hour.

Each count has a letter. Those from ``a`` on count waits and those from ``A`` on holds, by how long
they took, one letter for each range of ``BOUNDS``. What was counted in a slot of five minutes is
written as text, such as ``a12c3A14F1x2``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

SLOT = 300
"""Seconds of a slot."""
SLOTS = 12
"""How many slots are kept: an hour, of which the last slot is not over."""
BOUNDS = tuple(
    step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)
)  # 1 ms, 2 ms, 5 ms, ... 5000 s
"""The longest duration (seconds) in each range but the last, which has no end."""
MOST = 999_999_999
"""Where each count stops, so that a slot has a largest size."""

WAITED: Final = "a"
HELD: Final = "A"
BUSY: Final = "x"
TIMED_OUT: Final = "y"
LOST: Final = "z"

Counts = dict[str, int]
"""What is counted, by letter."""
_COUNT = re.compile(r"([a-zA-Z])([0-9]{1,15})")


def letter_of(what: str, seconds: float) -> str:
    """Return the letter that counts an event; ``seconds`` matters for waits and holds."""
    if what in (WAITED, HELD):
        return chr(ord(what) + bisect_left(BOUNDS, seconds))
    return what


def write_counts(counts: Mapping[str, int]) -> str:
    """Return counts as text."""
    return "".join(f"{letter}{counts[letter]}" for letter in sorted(counts))


def read_counts(text: str) -> Counts:
    """Return the counts in a text."""
    return {letter: int(number) for letter, number in _COUNT.findall(text)}


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> Counts:
    """Return the sum of counts."""
    return {
        letter: min(MOST, one.get(letter, 0) + other.get(letter, 0)) for letter in {**one, **other}
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took, each time."""

    counts: tuple[int, ...]
    """How often it took so long, by the ranges of ``BOUNDS``."""

    @property
    def number(self) -> int:
        """How often it happened."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return about how many seconds this share of them took at most; ``None`` without any.

        It is interpolated within one range of ``BOUNDS``, which may be wrong by a factor of up to
        2.5, and mostly by far less. Whatever is longer than the last bound counts as that.
        """
        wanted = share * self.number
        passed, low = 0, 0.0
        for count, high in zip(self.counts, (*BOUNDS, BOUNDS[-1]), strict=True):
            if count and passed + count >= wanted:
                return low + (high - low) * (wanted - passed) / count
            passed, low = passed + count, high
        return None


@dataclass(frozen=True, slots=True)
class Slot:
    """What happened to the locks of a group in some minutes."""

    began: datetime
    """When it began, by the server's clock."""
    waited: Spread
    """How long callers waited that acquired a lock."""
    held: Spread
    """How long locks were held that were released."""
    busy: int
    """How many callers did not want to wait, and found a lock held."""
    timed_out: int
    """How many callers gave up when their time to wait had passed."""
    lost: int
    """How many holders lost a lock."""

    @property
    def acquired(self) -> int:
        """How many locks were acquired."""
        return self.waited.number

    @property
    def refused(self) -> int:
        """How many callers did not get a lock."""
        return self.busy + self.timed_out


@dataclass(frozen=True, slots=True)
class Contention:
    """What happened to the locks of a group within the last hour."""

    group: str
    """The group in ``GROUPS`` of ``OPERATORS``, or ``other``."""
    using: str
    """The alias of the backend in ``LOCKS``."""
    total: Slot
    """The whole hour."""
    slots: tuple[Slot, ...]
    """Its twelve parts of five minutes, the oldest first; the last one is not over."""

    @property
    def is_any(self) -> bool:
        """Whether anything happened."""
        total = self.total
        return bool(total.acquired or total.held.number or total.refused or total.lost)


def read_contention(group: str, using: str, answer: Sequence[Any]) -> Contention:
    """Read the answer of ``contention.lua``."""
    last = int(answer[0]) // 1000 // SLOT
    known = dict(written_slots(answer))
    numbers = range(last - SLOTS + 1, last + 1)
    whole: Counts = {}
    for number in numbers:
        whole = add_counts(whole, known.get(number, {}))
    return Contention(
        group=group,
        using=using,
        total=_slot(numbers[0], whole),
        slots=tuple(_slot(number, known.get(number, {})) for number in numbers),
    )


def written_slots(answer: Sequence[Any]) -> Iterable[tuple[int, Counts]]:
    """Yield the number of each slot in an answer of ``contention.lua``, and its counts."""
    for number, text in zip(answer[1::2], answer[2::2], strict=True):
        if number.isdigit() and len(number) < 16:
            yield int(number), read_counts(text.decode(errors="replace"))


def events_in(answer: Sequence[Any]) -> int:
    """Return how much is counted in an answer of ``contention.lua``."""
    return sum(sum(counts.values()) for _, counts in written_slots(answer))


def _slot(number: int, counts: Counts) -> Slot:
    return Slot(
        began=datetime.fromtimestamp(number * SLOT, UTC),
        waited=_spread(WAITED, counts),
        held=_spread(HELD, counts),
        busy=counts.get(BUSY, 0),
        timed_out=counts.get(TIMED_OUT, 0),
        lost=counts.get(LOST, 0),
    )


def _spread(what: str, counts: Counts) -> Spread:
    first = ord(what)
    return Spread(tuple(counts.get(chr(first + n), 0) for n in range(len(BOUNDS) + 1)))
