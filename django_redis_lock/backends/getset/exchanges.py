"""How locks are taken, renewed and released without scripts, with a few plain commands per call.

No I/O happens here: each method is a generator of commands. Every command names one key, so that a
proxy that spreads keys over servers can pass it on.

The scheme is that of the documentation of SETNX. The value tells when the lock ends. A caller that
finds it ended replaces it with GETSET, and has the lock if the replaced value had ended too.
Anything can happen between two commands; ``docs/explanation/layouts.md`` says what can't be
prevented.
"""

from __future__ import annotations

import contextlib
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from time import monotonic
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from django_redis_lock.backends.getset.timestamps import (
    PlainCommand,
    ServerClock,
    Stamp,
    Values,
    read_stamp,
)
from django_redis_lock.backends.index import write_page
from django_redis_lock.exceptions import LockError
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.records import token_id

NAME = "{name}"
"""The placeholder of the lock's name in the key of a lock."""
CLAIM_KEPT = 5.0
"""Seconds for which one caller has the right to replace an ended value; it uses half of them."""
TOO_LATE_MS = 50
"""A lock with less left is not deleted, since DEL could hit the lock of the next holder."""
LOOKS = 3
"""How often to read a value before believing that another holder's value stays there."""
BUSY = 3
"""The kind that ``acquire.lua`` returns for a lock that hands off to nobody: poll."""


class Exchanges:
    """The commands of each call, for the locks under one prefix."""

    def __init__(self, prefix: str, key: str, form: str, freed: Callable[[str], object]) -> None:
        self._before, _, self._after = key.partition(NAME)
        self._freed = freed  # called with the name of each lock that this process frees
        self._clock = ServerClock()
        self._own = Values(form)
        self._claim_prefix = f"{prefix}-claim:"
        self._index_key = f"{prefix}-index"
        self._fence_key = f"{prefix}-fence"
        self._audit_key = f"{prefix}-audit"

    def carry_out(self, call: Call) -> Steps[Any]:
        """Carry out a call. Returns what the script of its name returns."""
        return self._methods[type(call)](self, call)

    def _key(self, name: str) -> str:
        return f"{self._before}{name}{self._after}"

    def _write(self, request: Request) -> Stamp:
        end_ms = self._clock.latest_ms() + request.lease_ms
        token, record = request.token.encode(), request.record.encode()
        return self._own.write(Stamp(b"", end_ms, token, 0, self._clock.earliest_ms(), record))

    def _look(self, name: str, token: str) -> Steps[tuple[Any, Stamp | None]]:
        """Read a lock's value, and its stamp if it belongs to a token.

        Another's value may be there for a moment, until the caller that wrote it too late puts ours
        back.
        """
        for _ in range(LOOKS):
            value = yield PlainCommand("GET", self._key(name))
            ours = self._own.stamp(token, value)
            if value is None or ours:
                break
        return value, ours

    def _put_back(self, name: str, value: bytes | None) -> Steps[Any]:
        """Undo a GETSET that replaced another's value, or none."""
        key = self._key(name)
        if value is None:
            yield PlainCommand("DEL", key)
        else:
            yield PlainCommand("SET", key, value, "XX")  # unless it was released meanwhile

    def _acquire(self, call: calls.Acquire) -> Steps[Any]:
        request = call.request
        key = self._key(request.name)
        for _ in range(LOOKS):
            yield from self._clock.look()
            mine = self._write(request)
            if (yield PlainCommand("SETNX", key, mine.value)):
                return (yield from self._settle(request, mine, replaced=False))
            value = yield PlainCommand("GET", key)
            if value is None:
                continue  # released in between
            # It is ours if the reply to an earlier sending was lost.
            ours = self._own.stamp(request.token, value)
            stamp = ours or read_stamp(value)
            if stamp.passed(self._clock.earliest_ms()):
                return (yield from self._replace(request, value))
            if ours:
                return (yield from self._settle(request, ours, replaced=True))
            return self._busy(stamp)
        return self._busy()

    def _replace(self, request: Request, ended: bytes) -> Steps[Any]:
        """Take a lock whose lease has ended."""
        if not (yield from self._claim(request, ended)):
            return self._busy()
        mine = self._write(request)
        old = yield PlainCommand("GETSET", self._key(request.name), mine.value)
        if self._was_free(request.token, old):
            return (yield from self._settle(request, mine, replaced=True))
        yield from self._put_back(request.name, old)
        return self._busy(read_stamp(old))

    def _busy(self, stamp: Stamp | None = None) -> list[int]:
        now_ms = self._clock.earliest_ms()
        return [0, -1 if stamp is None else stamp.left_ms(now_ms), now_ms, BUSY]

    def _was_free(self, token: str, old: bytes | None) -> bool:
        if old is None or self._own.stamp(token, old):
            return True
        return read_stamp(old).passed(self._clock.earliest_ms())

    def _claim(self, request: Request, value: bytes) -> Steps[bool]:
        """Gain the right to replace an ended value, which only one of our processes gets.

        So none of them overwrites a value that another one wrote just before. Other programs, which
        use the bare scheme, still may. Each value has a key of its own, which expires.
        """
        key = f"{self._claim_prefix}{token_id(value)}:{request.name}"
        began = monotonic()
        claim = PlainCommand("SET", key, request.token, "NX", "PX", int(CLAIM_KEPT * 1000))
        if (yield claim) is None and (yield PlainCommand("GET", key)) != request.token.encode():
            return False
        return monotonic() - began < CLAIM_KEPT / 2

    def _settle(
        self, request: Request, mine: Stamp, *, replaced: bool, tokens: Sequence[str] = ()
    ) -> Steps[Any]:
        """Make sure of a lock that was just taken, and return the answer of ``acquire.lua``.

        ``tokens`` are those whose values may be replaced; by default only the request's own.
        """
        self._own.note(request.token, mine, self._clock.earliest_ms())
        fence: int = mine.fence or self._clock.earliest_ms() * 1000
        if self._own.keep_tokens:
            if not mine.fence:
                fence = yield from self._draw_fence(request, mine, tokens or (request.token,))
                if not fence:
                    return self._busy()
        elif replaced and not (yield from self._insist(request, mine)):
            return self._busy()
        yield PlainCommand("ZADD", self._index_key, mine.score, request.name)
        if not random.randrange(16):  # now and then, drop what has expired
            yield PlainCommand(
                "ZREMRANGEBYSCORE", self._index_key, "-inf", self._clock.earliest_ms() - 1
            )
        now_ms = self._clock.latest_ms()
        return [fence, mine.left_ms(now_ms), now_ms]

    def _draw_fence(self, request: Request, mine: Stamp, tokens: Sequence[str]) -> Steps[int]:
        """Draw the next fence and write it into the lock; return 0 if the lock was lost.

        The value was ours before the fence was drawn, and still is when it is written. So the fence
        was drawn during the hold, and fences rise from hold to hold.
        """
        fence: int = 0
        for _ in range(LOOKS):
            # A new or lost key begins at the clock. Only one caller sets it, and none adds a time
            # to it: if two did, fences would be ahead of the clock for ever.
            now = self._clock.earliest_ms() * 1000
            yield PlainCommand("SETNX", self._fence_key, now)
            try:
                fence = yield PlainCommand("INCR", self._fence_key)
            except ResponseError as error:
                if "not an integer" in str(error) or "overflow" in str(error):
                    raise self._no_fence(request, "no number that can rise") from error
                raise
            if fence >= now // 2:
                break
            # It was lost in between, so INCR created it. All callers that find this delete it. A
            # late one deletes a good fence; then the clock has moved on, as after a loss.
            yield PlainCommand("DEL", self._fence_key)
        else:
            raise self._no_fence(request, str(fence))
        if fence >= 1 << 53:
            raise self._no_fence(request, str(fence))
        final = self._own.write(replace(mine, fence=fence))
        for _ in range(LOOKS):
            old = yield PlainCommand("GETSET", self._key(request.name), final.value)
            if any(self._own.stamp(token, old) for token in tokens):
                return fence
            yield from self._put_back(request.name, old)
            _, ours = yield from self._look(request.name, request.token)
            if not ours:
                break
        return 0

    def _no_fence(self, request: Request, found: str) -> LockError:
        return LockError(
            f"The key {self._fence_key!r} holds {found}, which is no fence of ours: another "
            f"program writes it. Delete that key, or choose another KEY_PREFIX.",
            name=request.name,
        )

    def _insist(self, request: Request, mine: Stamp) -> Steps[bool]:
        """Write our time again if another program that lost the race replaced it by GETSET."""
        key = self._key(request.name)
        for _ in range(LOOKS):
            value = yield PlainCommand("GET", key)
            if value == mine.value:
                return True
            if value is None or read_stamp(value).passed(self._clock.earliest_ms()):
                return False
            yield PlainCommand("SET", key, mine.value, "XX")
        return True

    def _take_over(self, call: calls.TakeOver) -> Steps[Any]:
        request = call.request
        if not self._own.keep_tokens:
            raise LockError(
                f"Lock {request.name!r} can't be passed on: a time in seconds does not tell "
                f"its holder. Write OPTIONS['FORMAT'] = 'record'.",
                name=request.name,
            )
        yield from self._clock.look()
        key = self._key(request.name)
        value = yield PlainCommand("GET", key)
        stamp = read_stamp(b"0" if value is None else value)
        if stamp.passed(self._clock.earliest_ms()):
            return None
        # The caller's own token is there if the reply to an earlier sending was lost.
        if stamp.token != request.token.encode() and (
            not stamp.token or token_id(stamp.token) != call.token_id
        ):
            return None
        mine = self._write(request)
        old = yield PlainCommand("GETSET", key, mine.value)
        tokens = (stamp.token.decode(), request.token)
        if not any(self._own.stamp(token, old) for token in tokens):
            yield from self._put_back(request.name, old)
            return None
        # A renewal of the former holder, which was under way, may replace ours for a moment.
        answer = yield from self._settle(request, mine, replaced=True, tokens=tokens)
        return answer[0] or None

    def _release(self, call: calls.Release) -> Steps[Any]:
        yield from self._clock.look()
        _, ours = yield from self._look(call.name, call.token)
        # It counts as lost once it has surely ended. Until then nobody else can have taken it.
        if ours is None or ours.passed(self._clock.earliest_ms()):
            self._own.forget(call.token)
            return 0
        if not 0 <= ours.left_ms(self._clock.latest_ms()) < TOO_LATE_MS:
            yield PlainCommand("DEL", self._key(call.name))
        yield PlainCommand("ZREM", self._index_key, call.name)
        self._own.forget(call.token)
        return 1

    def _renew(self, call: calls.Renew) -> Steps[Any]:
        yield from self._clock.look()
        left = []
        for name, token, lease_ms in call.leases:
            try:
                left_ms = yield from self._renew_one(name, token, lease_ms, call.at_least)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                left_ms = -2  # another program has overwritten this one; renew the others
            left.append(left_ms)
        return left

    def _renew_one(self, name: str, token: str, lease_ms: int, at_least: bool) -> Steps[int]:
        _, ours = yield from self._look(name, token)
        now_ms = self._clock.latest_ms()
        # A caller that only looks gets the least that is left. Setting a lease is verified below.
        if ours is None or ours.passed(self._clock.earliest_ms() if lease_ms else now_ms):
            return -2
        left_ms = ours.left_ms(now_ms)
        if lease_ms == 0 or (at_least and (left_ms < 0 or left_ms > lease_ms)):
            return left_ms
        end_ms = math.inf if lease_ms < 0 else now_ms + lease_ms
        longer = self._own.write(replace(ours, end_ms=end_ms))
        self._own.note(token, longer, now_ms)
        old = yield PlainCommand("GETSET", self._key(name), longer.value)
        if not self._own.stamp(token, old):
            yield from self._put_back(name, old)
            return -2
        if old != longer.value:
            self._own.discard(token, old)
        with contextlib.suppress(ResponseError):  # only the index lacks it; the lock is held
            yield PlainCommand("ZADD", self._index_key, longer.score, name)
        return lease_ms

    def _force_release(self, call: calls.ForceRelease) -> Steps[Any]:
        yield from self._clock.look()
        key = self._key(call.name)
        if not self._is_shown((yield PlainCommand("GET", key)), call.token_id):
            return (yield from self._complete_audit(call)) if call.deleted else None
        yield from self._try_audit()
        if not self._is_shown((yield PlainCommand("GET", key)), call.token_id):
            return None  # released meanwhile
        call.deleted = True  # or may be, if no reply comes
        try:
            if not (yield PlainCommand("DEL", key)):
                return None  # released meanwhile
        except ResponseError:
            call.deleted = False
            raise
        self._freed(call.name)
        with contextlib.suppress(ResponseError):  # only the index has it; the lock is free
            yield PlainCommand("ZREM", self._index_key, call.name)
        return (yield from self._write_entry(call))

    def _is_shown(self, value: bytes | None, shown: str) -> bool:
        if value is None:
            return False
        stamp = read_stamp(value)
        whose = token_id(stamp.token or value)
        return whose == shown and not stamp.passed(self._clock.earliest_ms())

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
        start = call.start or str(self._clock.earliest_ms())
        command = ("ZRANGEBYSCORE", self._index_key, start, "+inf", "WITHSCORES")
        if not call.after:
            return write_page(_entries((yield PlainCommand(*command, "LIMIT", 0, call.count))))
        # Within one lease end the page begins after a name, and no command finds its place.
        found = _entries((yield PlainCommand(*command)))
        passed = bisect_right(found, (float(call.start), call.after), key=_place)
        return write_page(found[passed : passed + call.count])

    def _read_history(self, call: calls.ReadHistory) -> Steps[Any]:
        before = call.before if call.before == "+" else f"({call.before}"
        found = yield PlainCommand("XREVRANGE", self._audit_key, before, "-", "COUNT", call.count)
        end = found[-1][0] if len(found) == call.count else b""
        if call.name:
            name = call.name.encode()
            found = [entry for entry in found if _fields(entry).get(b"name") == name]
        return [[end, *found]]

    def _try_audit(self) -> Steps[Any]:
        """Raise the server's error if it would refuse an entry, unless it is out of memory.

        A forced release that can't be audited is refused, but an operator must be able to free a
        lock on a full server. The entry itself is written after the release.
        """
        try:
            yield PlainCommand("XADD", self._audit_key, "0-0", "event", "")  # never a valid id
        except ResponseError as error:
            text = str(error)
            if not ("greater than 0-0" in text or "used memory" in text):
                raise
        # It fails if the key is no stream.
        yield PlainCommand("XREVRANGE", self._audit_key, "+", "-", "COUNT", 1)

    def _complete_audit(self, call: calls.ForceRelease) -> Steps[Any]:
        """Write the entry, unless the earlier sending that deleted the lock did so."""
        ours = [part.encode() for part in chain(*call.entry.items())]
        latest = yield PlainCommand("XREVRANGE", self._audit_key, "+", "-", "COUNT", 100)
        if any(entry[1] == ours for entry in latest):
            return 1
        return (yield from self._write_entry(call))

    def _write_entry(self, call: calls.ForceRelease) -> Steps[Any]:
        pairs = chain(*call.entry.items())
        try:
            yield PlainCommand("XADD", self._audit_key, "MAXLEN", "~", call.cap, "*", *pairs)
        except ResponseError:
            return 2
        return 1

    _methods: ClassVar[dict[type[Call], Callable[[Any, Any], Steps[Any]]]] = {
        calls.Acquire: _acquire,
        calls.TakeOver: _take_over,
        calls.Release: _release,
        calls.Renew: _renew,
        calls.Inspect: _inspect,
        calls.ForceRelease: _force_release,
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
