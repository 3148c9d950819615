"""Entries of the audit: written, read, and merged from several streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from django_redis_lock.protocol import audit
from django_redis_lock.protocol.audit import newest, read_entry
from django_redis_lock.protocol.records import read_holder, token_id, write_record
from django_redis_lock.support.process import known_process

FIELDS = {
    "event": "freed",
    "name": "a name",
    "fence": "1700000000123456",
    "token_id": "0123456789abcdef",
    "by": "someone",
    "reason": "it was stuck",
    "host": "web1",
    "pid": "12",
    "thread": "MainThread",
    "task_id": "id",
    "task_name": "task",
}


def pairs(fields: dict[str, str]) -> list[bytes]:
    return [text.encode() for pair in fields.items() for text in pair]


def test_an_entry() -> None:
    entry = read_entry(b"1700000000123-4", pairs(FIELDS), using="other")
    expected: dict[str, Any] = {**FIELDS, "fence": 1700000000123456, "pid": 12}
    assert {key: getattr(entry, key) for key in FIELDS} == expected
    assert (entry.id, entry.using) == ("1700000000123-4", "other")
    assert entry.at == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert str(entry) == "task task[id] on web1:12"


@pytest.mark.parametrize("strange", ["", "x", "-1", "²", "12345678901234567"])
def test_an_entry_of_another_program(strange: str) -> None:
    """What can't be read is empty."""
    entry = read_entry(f"{strange}-0".encode(), pairs({"fence": strange, "pid": strange}), using="")
    assert (entry.at, entry.fence, entry.pid, entry.host) == (None, None, None, None)
    assert (entry.event, entry.name, entry.token_id, entry.by, entry.reason) == ("",) * 5
    assert str(entry) == "another program"


def test_bytes_that_are_no_text() -> None:
    entry = read_entry(b"\xff-0", [b"name", b"a\xff", b"\xff", b"x", b"alone"], using="")
    assert (entry.id, entry.name) == ("\ufffd-0", "a\ufffd")


def test_the_longest_numbers() -> None:
    fields = {"fence": "1234567890123456", "pid": "1234567890123456"}
    entry = read_entry(b"0123456789012345-0", pairs(fields), using="")
    assert entry.fence == entry.pid == 1234567890123456
    assert entry.at == datetime(5882, 3, 11, 0, 30, 12, 345000, UTC)


def test_what_is_written_of_a_release() -> None:
    record = write_record(auto_renew=True, task_id="id", task_name="task")
    value = f"token 1700000000123456 {record}".encode()
    holder = read_holder(value, name="n", using="u", ttl_ms=-1, waiters=0, now_ms=0)
    process = known_process()
    assert audit.taken("freed", holder, "someone", "stuck") == {
        "event": "freed",
        "name": "n",
        "fence": "1700000000123456",
        "by": "someone",
        "token_id": token_id(b"token"),
        "reason": "stuck",
        "host": process.host,
        "pid": str(process.pid),
        "thread": "MainThread",
        "task_id": "id",
        "task_name": "task",
    }
    foreign = read_holder(b"token", name="n", using="u", ttl_ms=-1, waiters=0, now_ms=0)
    fields = audit.taken("freed", foreign, "", "")
    assert fields.keys() == {"event", "name", "fence", "token_id", "by", "reason"}
    assert fields["fence"] == ""


def entries(*ids: str) -> list[Any]:
    return [[each.encode(), []] for each in ids]


@pytest.mark.parametrize(
    ("pages", "end", "merged"),
    [
        ([], b"", []),
        ([[b""], [b""]], b"", []),
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
