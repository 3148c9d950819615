"""Locks by SETNX and GETSET, for servers and proxies without scripts and beside other programs.

A caller that finds an ended value replaces it with GETSET, and has the lock if the replaced value
had ended too. ``docs/explanation/layouts.md`` says what can't be prevented between two commands.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from time import monotonic
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from django_redis_lock.backends.index import write_page
from django_redis_lock.backends.servers import ServersLockBackend, SingleServer
from django_redis_lock.backends.settings import read_choice, read_poll_interval
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Step, Steps, arun, run
from django_redis_lock.protocol.lease import Request, token_id
from django_redis_lock.protocol.records import Holder, moment
from django_redis_lock.protocol.waiting import PollingRegistry, WaiterRegistry
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Command, Packed

ENDLESS = 253_402_300_800
"""Seconds since the epoch: the year 10000. A value from there on is a lease with no expiry."""
FORMATS = ("record", "seconds")
Word = bytes | str | int


class PlainCommand(Step):
    """A command of the server, its name first."""

    __slots__ = ("words",)

    def __init__(self, *words: Word) -> None:
        self.words = words

    def do(self, port: Any) -> Any:
        return port.server.client.call(port.pack(self.words))

    async def ado(self, port: Any) -> Any:
        return await port.server.async_client.call(port.pack(self.words))


class ServerClock:
    """The server's clock, carried forward by the local monotonic one for a few seconds."""

    KEPT = 5.0
    """Seconds for which a reading is carried forward."""
    SLOW = 0.05
    """Seconds; an answer that took longer, such as the first, is too inexact for short leases."""

    def __init__(self) -> None:
        self._read = -math.inf, -math.inf, 0  # asked and answered at (local), the server's ms

    def read(self) -> Steps[None]:
        """Ask the server, unless a recent reading is known."""
        for _ in range(TRIES):
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
    """When the lease ends; infinite for a lease with no expiry, or if the value is no time."""
    token: bytes = b""
    """The holder's token, if the format has it."""
    fence: int = 0
    """The fence; 0 until the holder has drawn one."""
    acquired_ms: int | None = None
    record: bytes = b""

    def passed(self, now_ms: int) -> bool:
        return self.end_ms < now_ms

    def left_ms(self, now_ms: int) -> int:
        """Return the milliseconds left of the lease; -1 for one with no expiry."""
        return -1 if math.isinf(self.end_ms) else max(0, int(self.end_ms) - now_ms)

    @property
    def score(self) -> str:
        """The score of the lock in the index, which is ordered by the ends of leases."""
        return "+inf" if math.isinf(self.end_ms) else str(int(self.end_ms))


_RECORD = re.compile(rb"(\d{1,16}) ([0-9a-f]{32}) (\d{1,16}) (\d{1,16}) (- \{.*\})", re.DOTALL)
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
        # No two with no expiry are equal.
        seconds = ENDLESS + secrets.randbelow(10**9) if endless else int(stamp.end_ms) // 1000 + 1
        return replace(stamp, value=b"%d" % seconds)

    def note(self, token: str, stamp: Stamp, now_ms: int) -> None:
        if self.keep_tokens:
            return
        if len(self._written) > 1000:  # forget locks that expired
            for other, stamps in list(self._written.items()):
                if all(one.passed(now_ms) for one in list(stamps.values())):
                    self._written.pop(other, None)
        self._written.setdefault(token, {})[stamp.value] = stamp

    def discard(self, token: str, value: bytes) -> None:
        self._written.get(token, {}).pop(value, None)

    def forget(self, token: str) -> None:
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


NAME = "{name}"
"""The placeholder of the lock's name in the key of a lock."""
CLAIM_KEPT = 5.0
"""Seconds for which one caller has the right to replace an ended value; it uses half of them."""
TOO_LATE_MS = 50
"""A lock with less left is not deleted, since DEL could hit the lock of the next holder."""
TRIES = 3
"""How often to begin anew at most where something changed between two commands, and to ask for the
time if answers are slow."""


class GetSetLockBackend(ServersLockBackend):
    """Locks whose value is the time at which they end.

    SETNX acquires a free lock, GETSET one that has ended (the algorithm in the documentation of
    SETNX). Only plain commands with one key each are sent: no scripts, transactions or channels. So
    it works where these are forbidden, and beside programs that use the same scheme. It promises
    less than the other backends.

    LOCATION is an alias of CACHES that django-redis or Django's RedisCache serves, or a URL.

    OPTIONS["FORMAT"] is what is written: ``record`` (the time, the token and the holder's record)
    or, for other programs to read, only the time in whole ``seconds``. Both are read, and seconds
    with a fraction. OPTIONS["KEY"] is the key of a lock, by default ``"{KEY_PREFIX}:{name}"``.
    Waiters poll every OPTIONS["POLL_INTERVAL"] seconds.
    """

    can_share: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ("FORMAT", "KEY", "POLL_INTERVAL")

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.location = Location("default" if location is None else location, self.alias)
        if self.location.urls:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['LOCATION'] is a list, but this backend uses one server, "
                f"or a proxy that looks like one; write an alias of CACHES, or a URL."
            )
        form = read_choice(options, "FORMAT", FORMATS, self.alias)
        self._interval = read_poll_interval(options, self.alias)
        key = options.get("KEY", f"{self.key_prefix}:{NAME}")
        if not isinstance(key, str) or key.count(NAME) != 1:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['KEY'] is {key!r}; it must be a str that has "
                f"{NAME} in it once, such as 'lock.{NAME}'."
            )
        self.lock_keys = key.partition(NAME)[0]
        self.servers = _PlainServer(self.location, self.key_prefix, key, form)

    def make_registry(self, scheme: str) -> WaiterRegistry:
        return PollingRegistry(self._interval)

    def _read_holder(self, value: bytes, *, now_ms: int, **known: Any) -> Holder:
        stamp = read_stamp(value)
        record = b"%b %d - %b" % (stamp.token, stamp.fence, stamp.record)
        began_ms = stamp.acquired_ms
        return replace(
            super()._read_holder(record, now_ms=now_ms, **known),
            token_id=token_id(stamp.token or value),
            fence=stamp.fence or None,
            acquired_at=None if began_ms is None else moment(began_ms * 1000),
            held_for=None if began_ms is None else max(0.0, (now_ms - began_ms) / 1000),
        )


class _PlainServer(SingleServer):
    """A server that carries out each call in some plain commands, for the locks under a prefix."""

    def __init__(self, location: Location, prefix: str, key: str, form: str) -> None:
        super().__init__(location)
        self._pattern = key
        self._clock = ServerClock()
        self._own = Values(form)
        self._claim_prefix = f"{prefix}-claim:"
        self._index_key = f"{prefix}-index"
        self._fence_key = f"{prefix}-fence"
        self._audit_key = f"{prefix}-audit"

    def call(self, call: Call) -> Any:
        return run(_Port(self, call), self.carry_out(call))

    async def acall(self, call: Call) -> Any:
        return await arun(_Port(self, call), self.carry_out(call))

    def carry_out(self, call: Call) -> Steps[Any]:
        """Carry out a call. Returns what the script of its name returns."""
        yield from self._clock.read()
        return (yield from self._methods[type(call)](self, call))

    def _key(self, name: str) -> str:
        return self._pattern.replace(NAME, name)

    def _get(self, name: str) -> Steps[Any]:
        """Read a lock; what another program wrote and is no string counts as none."""
        try:
            return (yield PlainCommand("GET", self._key(name)))
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return None

    def _write(self, request: Request) -> Stamp:
        end_ms = self._clock.latest_ms() + request.lease_ms
        token, record = request.token.encode(), request.record.encode()
        return self._own.write(Stamp(b"", end_ms, token, 0, self._clock.earliest_ms(), record))

    def _put_back(self, name: str, value: bytes | None) -> Steps[None]:
        """Undo a GETSET that replaced another's value, or none."""
        if value is None:
            yield PlainCommand("DEL", self._key(name))
        else:
            yield PlainCommand("SET", self._key(name), value, "XX")  # unless released meanwhile

    # Taking a lock.

    def _acquire(self, call: calls.Acquire) -> Steps[list[int]]:
        request = call.request
        key = self._key(request.name)
        for _ in range(TRIES):
            mine = self._write(request)
            if (yield PlainCommand("SETNX", key, mine.value)):
                return (yield from self._complete(request, mine))
            value = yield PlainCommand("GET", key)
            if value is None:
                continue  # released in between
            # It is ours if the reply to an earlier sending was lost.
            ours = self._own.stamp(request.token, value)
            stamp = ours or read_stamp(value)
            if stamp.passed(self._clock.earliest_ms()):
                return (yield from self._replace(request, value))
            if ours:
                return (yield from self._complete(request, ours))
            return self._busy(stamp)
        return self._busy()

    def _replace(self, request: Request, ended: bytes) -> Steps[list[int]]:
        """Take a lock whose lease has ended."""
        if not (yield from self._claim(request, ended)):
            return self._busy()
        mine = self._write(request)
        key = self._key(request.name)
        old = yield PlainCommand("GETSET", key, mine.value)
        free = old is None or self._own.stamp(request.token, old)
        if not free and not read_stamp(old).passed(self._clock.earliest_ms()):
            yield from self._put_back(request.name, old)
            return self._busy(read_stamp(old))
        if not self._own.keep_tokens:  # else the value is written again with the fence
            value = yield PlainCommand("GET", key)
            if value is None:
                return self._busy()
            if value != mine.value:  # another program that lost the race went over it
                yield PlainCommand("SET", key, mine.value, "XX")
        return (yield from self._complete(request, mine))

    def _busy(self, stamp: Stamp | None = None) -> list[int]:
        now_ms = self._clock.earliest_ms()
        # 3 is what ``acquire.lua`` returns for a lock without a hand-off: poll.
        return [0, -1 if stamp is None else stamp.left_ms(now_ms), now_ms, 3]

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

    def _complete(self, request: Request, mine: Stamp, former: str = "") -> Steps[list[int]]:
        """Add the fence and the index to a lock that was just taken; return what acquiring does.

        The value is ours, or still that of the ``former`` token.
        """
        self._own.note(request.token, mine, self._clock.earliest_ms())
        fence: int = mine.fence or self._clock.earliest_ms() * 1000
        if self._own.keep_tokens and not mine.fence:
            # Our value was there before the fence was drawn, and still is when it is written. So
            # the fence was drawn during the hold, and fences rise from hold to hold.
            fence = yield from self._draw_fence(request)
            final = self._own.write(replace(mine, fence=fence))
            old = yield PlainCommand("GETSET", self._key(request.name), final.value)
            if not any(self._own.stamp(token, old) for token in (request.token, former)):
                yield from self._put_back(request.name, old)
                return self._busy()
        yield PlainCommand("ZADD", self._index_key, mine.score, request.name)
        if not random.randrange(16):  # now and then, drop what has expired
            ended_ms = self._clock.earliest_ms() - 1
            yield PlainCommand("ZREMRANGEBYSCORE", self._index_key, "-inf", ended_ms)
        now_ms = self._clock.latest_ms()
        return [fence, mine.left_ms(now_ms), now_ms]

    def _draw_fence(self, request: Request) -> Steps[int]:
        fence: Any = 0
        for _ in range(TRIES):
            # A new or lost key begins at the clock. Only one caller sets it, and none adds a time
            # to it: if two did, fences would be ahead of the clock for ever.
            now = self._clock.earliest_ms() * 1000
            yield PlainCommand("SETNX", self._fence_key, now)
            try:
                fence = yield PlainCommand("INCR", self._fence_key)
            except ResponseError as error:
                if "not an integer" not in str(error) and "overflow" not in str(error):
                    raise
                fence = "no number that can rise"
                break
            if now // 2 <= fence < 1 << 53:
                return int(fence)
            if fence >= now:
                break
            # It was lost in between, so INCR created it. All callers that find this delete it. A
            # late one deletes a good fence; then the clock has moved on, as after a loss.
            yield PlainCommand("DEL", self._fence_key)
        raise LockError(
            f"The key {self._fence_key!r} holds {fence}, which is no fence of ours: another "
            f"program writes it. Delete that key, or choose another KEY_PREFIX.",
            name=request.name,
        )

    def _take_over(self, call: calls.TakeOver) -> Steps[int | None]:
        request = call.request
        if not self._own.keep_tokens:
            raise LockError(
                f"Lock {request.name!r} can't be passed on: a time in seconds does not tell "
                f"its holder. Write OPTIONS['FORMAT'] = 'record'.",
                name=request.name,
            )
        key = self._key(request.name)
        stamp = read_stamp((yield PlainCommand("GET", key)) or b"0")
        # The caller's own token is there if the reply to an earlier sending was lost.
        if stamp.passed(self._clock.earliest_ms()) or (
            stamp.token != request.token.encode()
            and (not stamp.token or token_id(stamp.token) != call.token_id)
        ):
            return None
        mine, former = self._write(request), stamp.token.decode()
        old = yield PlainCommand("GETSET", key, mine.value)
        if not any(self._own.stamp(token, old) for token in (request.token, former)):
            yield from self._put_back(request.name, old)
            return None
        # A renewal of the former holder, which was under way, may replace ours for a moment.
        answer = yield from self._complete(request, mine, former)
        return answer[0] or None

    # Holding and releasing it.

    def _release(self, call: calls.Release) -> Steps[int]:
        ours = self._own.stamp(call.token, (yield PlainCommand("GET", self._key(call.name))))
        # It counts as lost once it has surely ended. Until then nobody else can have taken it.
        held = ours is not None and not ours.passed(self._clock.earliest_ms())
        if ours is not None and held:
            if not 0 <= ours.left_ms(self._clock.latest_ms()) < TOO_LATE_MS:
                yield PlainCommand("DEL", self._key(call.name))
            yield PlainCommand("ZREM", self._index_key, call.name)
        self._own.forget(call.token)
        return int(held)

    def _renew(self, call: calls.Renew) -> Steps[list[int]]:
        left: list[int] = []
        for lease in call.leases:
            left += [(yield from self._renew_one(*lease, call.at_least))]
        return left

    def _renew_one(self, name: str, token: str, lease_ms: int, at_least: bool) -> Steps[int]:
        ours = self._own.stamp(token, (yield from self._get(name)))
        now_ms = self._clock.latest_ms()
        # A caller that only reads gets the least that is left. Setting a lease is verified below.
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

    # What operators do.

    def _force_release(self, call: calls.ForceRelease) -> Steps[int | None]:
        if not call.deleted:
            yield from self._try_audit()
        key = self._key(call.name)
        value = yield PlainCommand("GET", key)
        stamp = read_stamp(b"0" if value is None else value)
        if stamp.passed(self._clock.earliest_ms()) or (
            token_id(stamp.token or value) != call.token_id
        ):
            return (yield from self._complete_audit(call)) if call.deleted else None
        call.deleted = True  # or may be, if no reply comes
        try:
            if not (yield PlainCommand("DEL", key)):
                return None  # released meanwhile
        except ResponseError:
            call.deleted = False
            raise
        with contextlib.suppress(ResponseError):  # only the index has it; the lock is free
            yield PlainCommand("ZREM", self._index_key, call.name)
        return (yield from self._write_entry(call))

    def _try_audit(self) -> Steps[None]:
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

    def _complete_audit(self, call: calls.ForceRelease) -> Steps[int]:
        """Write the entry, unless the earlier sending that deleted the lock did so."""
        ours = [part.encode() for part in chain(*call.entry.items())]
        latest = yield PlainCommand("XREVRANGE", self._audit_key, "+", "-", "COUNT", 100)
        if any(entry[1] == ours for entry in latest):
            return 1
        return (yield from self._write_entry(call))

    def _write_entry(self, call: calls.ForceRelease) -> Steps[int]:
        pairs = chain(*call.entry.items())
        try:
            yield PlainCommand("XADD", self._audit_key, "MAXLEN", "~", call.cap, "*", *pairs)
        except ResponseError:
            return 2
        return 1

    def _inspect(self, call: calls.Inspect) -> Steps[list[Any]]:
        answer: list[Any] = []
        now_ms = self._clock.latest_ms()
        for name in call.names:
            value = yield from self._get(name)
            stamp = read_stamp(b"0" if value is None else value)
            held = None if stamp.passed(now_ms) else value
            answer += [held, stamp.left_ms(now_ms) if held else -2, None]  # waiters are not known
        return [now_ms, *answer]

    def _read_queue(self, call: calls.ReadQueue) -> Steps[list[int]]:
        yield from ()
        return [self._clock.earliest_ms()]  # waiters are not known

    def _read_index(self, call: calls.ReadIndex) -> Steps[Any]:
        start = call.start or str(self._clock.earliest_ms())
        command = ("ZRANGEBYSCORE", self._index_key, start, "+inf", "WITHSCORES")
        if not call.after:
            found = yield PlainCommand(*command, "LIMIT", 0, call.count)
            return write_page(zip(found[0::2], found[1::2], strict=True))
        # Within one lease end the page begins after a name, and no command finds its position.
        found = yield PlainCommand(*command)
        found = list(zip(found[0::2], found[1::2], strict=True))
        after = float(call.start), call.after
        passed = bisect_right(found, after, key=lambda entry: (float(entry[1]), entry[0]))
        return write_page(found[passed : passed + call.count])

    def _read_history(self, call: calls.ReadHistory) -> Steps[list[Any]]:
        before = call.before if call.before == "+" else f"({call.before}"
        found = yield PlainCommand("XREVRANGE", self._audit_key, before, "-", "COUNT", call.count)
        end = found[-1][0] if len(found) == call.count else b""
        if call.name:
            pair = (b"name", call.name.encode())
            found = [
                (at, fields)
                for at, fields in found
                if pair in zip(fields[0::2], fields[1::2], strict=False)
            ]
        return [[end, *found]]

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


class _Port:
    """Sends the commands of one call, which counts as sent when the first of them is."""

    def __init__(self, server: SingleServer, call: Call) -> None:
        self.server = server
        self._sending = cache(call.sending)
        self._until = call.until

    def pack(self, words: tuple[Word, ...]) -> Packed:
        return Packed(Command(str(words[0])), (), words[1:], self._sending, until=self._until)
