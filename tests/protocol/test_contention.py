"""What is counted of the contention: how it is written, read and summed up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from django_redis_lock.protocol.contention import (
    BOUNDS,
    HELD,
    MOST,
    SLOT,
    SLOTS,
    WAITED,
    Spread,
    add_counts,
    events_in,
    letter_of,
    read_contention,
    read_counts,
    write_counts,
    written_slots,
)

NUMBER = 5_666_666
"""Of a slot."""
NOW = NUMBER * SLOT * 1000 + 1
"""A moment in it, in ms."""


def test_the_bounds() -> None:
    assert len(BOUNDS) == 21
    assert BOUNDS[:4] == (0.001, 0.002, 0.005, 0.01)
    assert BOUNDS[-1] == 5000


@pytest.mark.parametrize(
    ("seconds", "letter"), [(0, "a"), (0.001, "a"), (0.0011, "b"), (5000, "u"), (5001, "v")]
)
def test_durations_have_letters(seconds: float, letter: str) -> None:
    assert letter_of(WAITED, seconds) == letter
    assert letter_of(HELD, seconds) == letter.upper()
    assert letter_of("x", seconds) == "x"


def test_counts_as_text() -> None:
    counts = {"b": 2, "a": 1, "Z": 3}
    assert write_counts(counts) == "Z3a1b2"
    assert read_counts("Z3a1b2") == counts
    assert read_counts("1a2?b3 c" + "9" * 16) == {"a": 2, "b": 3, "c": int("9" * 15)}


def test_counts_are_added() -> None:
    """Up to the most."""
    assert add_counts({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}
    assert add_counts({"a": MOST - 1}, {"a": 1}) == {"a": MOST}
    assert add_counts({"a": MOST}, {"a": 1}) == {"a": MOST}


def spread(**counts: int) -> Spread:
    """Return how often something took so long, by letter."""
    letters = [chr(ord("a") + n) for n in range(len(BOUNDS) + 1)]
    return Spread(tuple(counts.get(letter, 0) for letter in letters))


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({}, 0.5, None),
        ({"a": 4}, 0.5, 0.0005),
        ({"a": 4}, 1.0, 0.001),
        ({"c": 10}, 0.5, 0.0035),
        ({"a": 5, "c": 5}, 0.5, 0.001),
        ({"a": 5, "c": 5}, 0.6, 0.0026),
        ({"a": 5, "c": 5}, 0.95, 0.0047),
        ({"u": 1}, 0.5, 3500.0),
        ({"v": 3}, 0.5, 5000.0),
    ],
)
def test_quantiles(counts: dict[str, int], share: float, seconds: float | None) -> None:
    """Within the range that has the share, by where it lies among those counted there."""
    found = spread(**counts)
    assert found.number == sum(counts.values())
    assert found.quantile(share) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("seconds", "share", "least", "most"),
    [
        ([0.0002] * 10, 0.5, 0.0, 0.001),
        ([0.001], 0.5, 0.0, 0.001),
        ([0.03] * 99 + [40], 0.5, 0.02, 0.05),
        ([0.03] * 90 + [40] * 10, 0.95, 20, 50),
        ([n / 100 for n in range(1000)], 0.5, 4, 6),
        ([n / 100 for n in range(1000)], 0.95, 9, 10),
        ([1e9], 0.5, BOUNDS[-1], BOUNDS[-1]),
    ],
)
def test_quantiles_are_about_right(
    seconds: list[float], share: float, least: float, most: float
) -> None:
    """Of durations as they are: the bounds of the range limit the error."""
    counts = [0] * (len(BOUNDS) + 1)
    for each in seconds:
        counts[ord(letter_of(WAITED, each)) - ord("a")] += 1
    found = Spread(tuple(counts)).quantile(share)
    assert found is not None
    assert least <= found <= most


def answer(slots: dict[Any, str]) -> list[Any]:
    pairs = [(str(number).encode(), text.encode()) for number, text in slots.items()]
    return [NOW, *(part for pair in pairs for part in pair)]


def test_an_hour() -> None:
    oldest = NUMBER - SLOTS + 1
    slots = {NUMBER: "a1b2C3x4", oldest: "b1y5z6", oldest - 1: "a9", NUMBER + 1: "a9"}
    found = read_contention("group", "other", answer(slots))
    assert (found.group, found.using, len(found.slots)) == ("group", "other", SLOTS)
    first, last, total = found.slots[0], found.slots[-1], found.total
    assert last.began == datetime.fromtimestamp(NUMBER * SLOT, UTC)
    assert first.began == total.began == datetime.fromtimestamp(oldest * SLOT, UTC)
    assert (last.acquired, last.held.number, last.refused, last.lost) == (3, 3, 4, 0)
    assert (first.acquired, first.held.number, first.refused, first.lost) == (1, 0, 5, 6)
    assert last.waited == spread(a=1, b=2)
    assert last.held == spread(c=3)
    assert total.waited == spread(a=1, b=3)
    assert (total.busy, total.timed_out, total.lost, total.refused) == (4, 5, 6, 9)
    assert all(slot.acquired == 0 for slot in found.slots[1:-1])


@pytest.mark.parametrize("letter", ["", *"aAxyz"])
def test_whether_anything_happened(letter: str) -> None:
    text = f"{letter}1"
    assert read_contention("group", "other", answer({NUMBER: text})).is_any is bool(letter)


def test_what_another_program_wrote_is_left_out() -> None:
    found = answer({"x": "a1", "1" * 16: "a1", "1" * 15: "a2", 5: "a3x4"})
    found += [b"7", b"a1\xff", b"\xff", b"a1"]
    last = int("1" * 15)
    assert list(written_slots(found)) == [(last, {"a": 2}), (5, {"a": 3, "x": 4}), (7, {"a": 1})]
    assert events_in(found) == 10
    with pytest.raises(ValueError, match="zip"):
        list(written_slots([NOW, b"5"]))
