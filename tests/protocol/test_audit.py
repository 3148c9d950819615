"""Entries of the audit: written, read, and merged from several streams."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_lock.protocol.records import newest, read_entry


def pairs(fields: dict[str, str]) -> list[bytes]:
    return [text.encode() for pair in fields.items() for text in pair]


@pytest.mark.parametrize("strange", ["", "x", "-1", "²", "12345678901234567890"])
def test_an_entry_of_another_program(strange: str) -> None:
    """What can't be read is empty."""
    entry = read_entry(f"{strange}-0".encode(), pairs({"fence": strange, "pid": strange}), using="")
    assert (entry.at, entry.fence, entry.pid, entry.host) == (None, None, None, None)
    assert (entry.event, entry.name, entry.token_id, entry.by, entry.reason) == ("",) * 5
    assert str(entry) == "another program"


def entries(*ids: str) -> list[Any]:
    return [[each.encode(), []] for each in ids]


@pytest.mark.parametrize(
    ("pages", "end", "merged"),
    [
        ([[b"", *entries("5-0", "3-0")], [b"", *entries("4-0")]], b"", ["5-0", "4-0", "3-0"]),
        ([[b"", *entries("10-0", "9-0")], [b"", *entries("9-10", "9-9")]], b"", None),
        (
            [[b"3-0", *entries("5-0", "3-0")], [b"4-0", *entries("6-0", "4-0")], [b""]],
            b"4-0",
            ["6-0", "5-0", "4-0"],
        ),
        ([[b"3-0", *entries("3-0")], [b"", *entries("9-0", "2-0")]], b"3-0", ["9-0", "3-0"]),
        ([[b"3-9", *entries("3-9")], [b"3-10", *entries("3-10")]], b"3-10", ["3-10"]),
    ],
)
def test_pages_are_merged(pages: list[Any], end: bytes, merged: list[str] | None) -> None:
    """By time; what is older than the end of a page waits for the next."""
    found_end, found = newest(pages)
    expected = ["10-0", "9-10", "9-9", "9-0"] if merged is None else merged
    assert (found_end, [entry[0].decode() for entry in found]) == (end, expected)
