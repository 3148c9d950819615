"""Holder records: written, read back, and read if another program wrote them."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime

import pytest

from django_redis_lock.protocol.lease import token_id, write_record, write_value
from django_redis_lock.protocol.records import Holder, read_holder, read_waiter

FENCE = 1_700_000_000_123_456


def read(value: bytes, ttl_ms: int = 1500, now_ms: int = 1_700_000_000_000) -> Holder:
    return read_holder(value, name="n", using="u", ttl_ms=ttl_ms, waiters=2, now_ms=now_ms)


def test_what_is_written_is_read_back() -> None:
    """Every field survives, text of any kind included; the token is never shown."""
    metadata = {"shop": "7", "Ключ": 'quote " space \n \x00', "": ""}
    record = write_record(30.0, metadata=metadata, task_id="id", task_name="name")
    assert record.isascii()
    assert record.isprintable()
    holder = read(write_value("secret-token", FENCE, record))
    assert holder.metadata == metadata
    assert (holder.task_id, holder.task_name, holder.auto_renew) == ("id", "name", True)
    assert holder.fence == FENCE
    assert holder.acquired_at == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert holder.expires_at == datetime(2023, 11, 14, 22, 13, 21, 500000, UTC)
    assert (holder.ttl, holder.waiters, holder.shared) == (1.5, 2, False)
    assert str(holder).startswith("task name[id] on ")
    assert holder.token_id == token_id(b"secret-token")
    assert "secret-token" not in repr(dataclasses.asdict(holder))


def test_leases() -> None:
    """One that just ended has an end, and an end beyond the calendar is its last day."""
    ended = read(b"t 1700000000000000 - - {}", ttl_ms=0)
    assert (ended.ttl, ended.held_for) == (0.0, 0.0)
    assert ended.expires_at == datetime(2023, 11, 14, 22, 13, 20, 0, UTC)
    endless = read(b"t 1 - - {}", ttl_ms=-1)
    assert (endless.ttl, endless.expires_at) == (None, None)
    assert read(b"t 1 - - {}", ttl_ms=10**17).expires_at == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"\xff\xfe\x00",
        b"t x - 3 {}",
        b"t 12345678901234567890 - 3 " + b'{"host":"h"}',  # more digits than a fence has
        b't 1 {"host":"h"}',
        b"t 1 - - []",
        b"t 1 - - {",
        b't 1 - many {"pid": "x", "host": 1, "metadata": [1], "task_id": {}}',
        b't 1 - - {"pid": true, "metadata": {"a": {"b": 1}}}',
        b"t 1 - - " + b"[" * 10_000,
    ],
)
def test_garbage_makes_a_bare_holder(value: bytes) -> None:
    holder = read(value)
    assert (holder.host, holder.pid, holder.task_id) == (None, None, None)
    assert (holder.shared, holder.limit) == (False, None)
    assert len(holder.token_id) == 16
    assert str(holder)


def test_an_origin_of_another_program() -> None:
    """Lone surrogates can't be shown."""
    record = '{"pid":"7","host":"h\\ud800","thread":"Поток","pid_space":"4026531836"}'
    holder = read(f"t 1 - - {record}".encode())
    assert (holder.pid, holder.host, holder.thread) == (None, "h\\ud800", "Поток")
    assert holder.pid_space == "4026531836"


def test_damaged_records_are_read_without_an_error() -> None:
    source = random.Random(7)
    good = write_value("token", FENCE, write_record())
    for _ in range(3000):
        value = bytearray(good)
        for _ in range(source.randrange(1, 8)):
            value[source.randrange(len(value))] = source.randrange(256)
        assert isinstance(read(bytes(value)), Holder)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1", 0.001), (2**53 - 1, (2**53 - 1) / 1000), (0, None), (2**53, None), ("true", None)],
)
def test_a_lease_in_milliseconds(written: object, seconds: float | None) -> None:
    """What is none is as good as nothing."""
    found = read(f'token {FENCE} - - {{"lease":{written},"max_hold":{written}}}'.encode())
    assert (found.lease, found.max_hold) == (seconds, seconds)


@pytest.mark.parametrize("entry", [b"", b"c", b"c t", b"c t x {}", b"c t 12345678901234567890 {}"])
def test_a_waiter_of_another_program(entry: bytes) -> None:
    at, now_ms = 1_700_000_000_000_000, 1_700_000_010_000
    found = read_waiter(entry, position=at, name="n", using="u", now_ms=now_ms)
    assert (found.token_id, found.lease, found.waited) == (None, None, 10)
    assert (found.auto_renew, found.metadata, str(found)) == (False, {}, "unknown")
