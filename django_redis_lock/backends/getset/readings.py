"""How locks are read, and the audit is read and written, without scripts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from django_redis_lock.backends.getset.clocks import Clock
from django_redis_lock.backends.getset.commands import PlainCommand
from django_redis_lock.backends.getset.timestamps import read_stamp
from django_redis_lock.backends.index import write_page
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.audit import Fields
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.drivers import Steps

NAME = "{name}"
"""The placeholder of the lock's name in the key of a lock."""

Methods = dict[type[Call], Callable[[Any, Any], Steps[Any]]]
SHIFT = 100
"""How many entries may enter or leave the index before a place in it must be searched again."""


class Readings:
    """The commands of each call that neither takes nor releases a lock."""

    def __init__(self, prefix: str, key: str, clock: Clock) -> None:
        self._before, _, self._after = key.partition(NAME)
        self._clock = clock
        self._index_key = f"{prefix}-index"
        self._audit_key = f"{prefix}-audit"

    def carry_out(self, call: Call) -> Steps[Any]:
        """Carry out a call. Returns what the script of its name returns."""
        return self._methods[type(call)](self, call)

    def _key(self, name: str) -> str:
        return f"{self._before}{name}{self._after}"

    def _inspect(self, call: calls.Inspect) -> Steps[Any]:
        yield from self._clock.look()
        answer: list[Any] = []
        now_ms = self._clock.latest_ms()
        for name in call.names:
            try:
                value = yield PlainCommand("GET", self._key(name))
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                value = None  # written by another program, and no string
            stamp = read_stamp(b"0" if value is None else value)
            held = None if stamp.passed(now_ms) else value
            answer += [held, stamp.left_ms(now_ms) if held else -2, None]  # waiters are not known
        return [now_ms, *answer]

    def _read_queue(self, call: calls.ReadQueue) -> Steps[Any]:
        yield from self._clock.look()
        return [self._clock.earliest_ms()]  # waiters are not known

    def _read_index(self, call: calls.ReadIndex) -> Steps[Any]:
        yield from self._clock.look()
        if call.after:
            return write_page((yield from self._entries_after(call)))
        start = call.start or str(self._clock.earliest_ms())
        page = ("WITHSCORES", "LIMIT", 0, call.count)
        return write_page(
            _entries((yield PlainCommand("ZRANGEBYSCORE", self._index_key, start, "+inf", *page)))
        )

    def _entries_after(self, call: calls.ReadIndex) -> Steps[Any]:
        """Return the entries after a place in the index, found by bisection as in ``index.lua``.

        Ranks may shift between the commands. So the range that is read has to begin before the
        place, or the place is searched again.
        """
        key, place = self._index_key, (float(call.start), call.after)
        while True:
            low, high = 0, (yield PlainCommand("ZCARD", key))
            while low < high:
                middle = (low + high) // 2
                entry = _entries((yield PlainCommand("ZRANGE", key, middle, middle, "WITHSCORES")))
                if entry and _place(entry[0]) <= place:
                    low = middle + 1
                else:
                    high = middle
            first, last = max(0, low - SHIFT), low + call.count + SHIFT - 1
            found = _entries((yield PlainCommand("ZRANGE", key, first, last, "WITHSCORES")))
            passed = bisect_right(found, place, key=_place)
            page = found[passed : passed + call.count]
            ended = len(found) <= last - first
            if (passed or first == 0) and (ended or len(page) == call.count):
                return page

    def _read_history(self, call: calls.ReadHistory) -> Steps[Any]:
        before = call.before if call.before == "+" else f"({call.before}"
        found = yield PlainCommand("XREVRANGE", self._audit_key, before, "-", "COUNT", call.count)
        end = found[-1][0] if len(found) == call.count else b""
        if call.name:
            name = call.name.encode()
            found = [entry for entry in found if _fields(entry).get(b"name") == name]
        return [[end, *found]]

    def _entry(self, entry: Fields, cap: int) -> PlainCommand:
        pairs = [part for pair in entry.items() for part in pair]
        return PlainCommand("XADD", self._audit_key, "MAXLEN", "~", cap, "*", *pairs)

    def _try_audit(self) -> Steps[Any]:
        """Raise the server's error if it would refuse an entry, unless it is out of memory.

        A forced release that can't be audited is refused, but an operator must be able to free a
        lock on a full server. The entry itself is written after the release.
        """
        try:
            yield PlainCommand(
                "XADD", self._audit_key, "0-0", "event", ""
            )  # no entry can have this id
        except ResponseError as error:
            text = str(error)
            if not ("greater than 0-0" in text or "used memory" in text):
                raise
        yield PlainCommand(
            "XREVRANGE", self._audit_key, "+", "-", "COUNT", 1
        )  # fails if it is no stream

    def _complete_audit(self, call: calls.ForceRelease) -> Steps[Any]:
        """Write the entry, unless the earlier sending that deleted the lock did so."""
        ours = [part.encode() for pair in call.entry.items() for part in pair]
        latest = yield PlainCommand("XREVRANGE", self._audit_key, "+", "-", "COUNT", 100)
        if any(entry[1] == ours for entry in latest):
            return 1
        return (yield from self._write_entry(call))

    def _write_entry(self, call: calls.ForceRelease) -> Steps[Any]:
        try:
            yield self._entry(call.entry, call.cap)
        except ResponseError:
            return 2
        return 1

    _methods: ClassVar[Methods] = {
        calls.Inspect: _inspect,
        calls.ReadHistory: _read_history,
        calls.ReadQueue: _read_queue,
        calls.ReadIndex: _read_index,
    }


def _fields(entry: Sequence[Any]) -> dict[bytes, bytes]:
    return dict(zip(entry[1][0::2], entry[1][1::2], strict=False))


def _entries(found: Sequence[Any]) -> list[tuple[bytes, bytes]]:
    """Return members and scores of a sorted set. RESP3 replies with pairs, and with numbers."""
    if found and isinstance(found[0], list):
        return [(member, b"%.17g" % score) for member, score in found]
    return list(zip(found[0::2], found[1::2], strict=True))


def _place(entry: tuple[bytes, bytes]) -> tuple[float, bytes]:
    member, end = entry
    return float(end), member
