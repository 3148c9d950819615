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
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from django_redis_lock.backends.redis import ServersLockBackend, SingleServer
from django_redis_lock.backends.settings import read_poll_interval
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call, Step, Steps
from django_redis_lock.protocol.drivers import Port
from django_redis_lock.protocol.lease import token_id
from django_redis_lock.protocol.waiting import PollingRegistry, WaiterRegistry
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Command, Packed

NAME = "{name}"  # the placeholder of the lock's name in the key of a lock
ENDLESS = 253_402_300_800  # the year 10000: a value from there on is a lease with no expiry
TOO_LATE_MS = 50  # with less left a lock is not deleted: DEL could hit that of the next holder
MOST_WRITTEN = 1000  # how many holds are remembered before those that have ended are forgotten
_SECONDS = re.compile(rb"\s*(\d{1,20}(?:\.\d{0,20})?)\s*")


class GetSetLockBackend(ServersLockBackend):
    """Locks whose value is the time at which they end, in whole seconds.

    SETNX acquires a free lock, GETSET one that has ended (the algorithm in the documentation of
    SETNX). Only plain commands with one key each are sent, so it works where scripts, transactions
    or channels are forbidden, and beside programs that use the same scheme. It promises less than
    the other backends: a value does not show who holds the lock, and there are neither fences nor
    an audit.

    LOCATION is an alias of CACHES that django-redis or Django's RedisCache serves, or a URL.
    OPTIONS["KEY"] is the key of a lock, by default ``"{KEY_PREFIX}:{name}"``. Waiters poll every
    OPTIONS["POLL_INTERVAL"] seconds.
    """

    can_share: ClassVar[bool] = False
    can_pass: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ("KEY", "POLL_INTERVAL")

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.location = Location("default" if location is None else location, self.alias)
        if self.location.urls:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['LOCATION'] is a list, but GetSetLockBackend uses one "
                f"server or proxy: set it to an alias of CACHES, or a URL."
            )
        self._interval = read_poll_interval(options, self.alias)
        key = options.get("KEY", f"{self.key_prefix}:{NAME}")
        if not isinstance(key, str) or key.count(NAME) != 1:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['KEY'] is {key!r}: it must be a str that "
                f"contains {NAME} once, such as 'lock.{NAME}'."
            )
        self.lock_keys = key.partition(NAME)[0]
        self.servers = _PlainServer(self.location, f"{self.key_prefix}-index", key)

    def make_registry(self, scheme: str) -> WaiterRegistry:
        return PollingRegistry(self._interval)


def end_of(value: bytes) -> float:
    """Return when a value ends, in ms since the epoch; infinite for no expiry, and for no time."""
    found = _SECONDS.fullmatch(value)
    seconds = float(found[1]) if found else math.inf
    return seconds * 1000 if seconds < ENDLESS else math.inf


def write_value(end_ms: float) -> bytes:
    """Return the value of a lock that ends then: the next whole second."""
    # "current time + timeout + 1", as in the documentation of SETNX. No two of no expiry are equal.
    endless = math.isinf(end_ms)
    return b"%d" % (ENDLESS + secrets.randbelow(10**9) if endless else int(end_ms) // 1000 + 1)


def _left_ms(end_ms: float, now_ms: int) -> int:
    return -1 if math.isinf(end_ms) else max(0, int(end_ms) - now_ms)


class PlainCommand(Step):
    __slots__ = ("words",)

    def __init__(self, *words: bytes | str | int) -> None:
        self.words = words


class _Port(Port):
    """Sends the commands of one call, which counts as sent when the first of them is."""

    def __init__(self, server: SingleServer, call: Call) -> None:
        self._server, self._call = server, call

    def call(self, command: PlainCommand) -> Any:
        return self._server.client.call(self._pack(command))

    async def acall(self, command: PlainCommand) -> Any:
        return await self._server.async_client.call(self._pack(command))

    def _pack(self, command: PlainCommand) -> Packed:
        name, *args = command.words
        sending = self._call.sending if name == "TIME" else lambda: None
        return Packed(Command(str(name)), (), args, sending, until=self._call.until)


class _PlainServer(SingleServer):
    """A server that carries out each call in some plain commands, the first for its time.

    Leases count from that, and for callers from its sending, so none relies on one for too long.
    """

    def __init__(self, location: Location, index_key: str, key: str) -> None:
        super().__init__(location)
        self._index_key, self._pattern = index_key, key
        # By token: the values that this process wrote, and when (ms) they end. There are several if
        # it is not known which of them is stored.
        self._written: dict[str, dict[bytes, float]] = {}

    def call(self, call: Call) -> Any:
        return _Port(self, call).run(self.carry_out(call))

    async def acall(self, call: Call) -> Any:
        return await _Port(self, call).arun(self.carry_out(call))

    def carry_out(self, call: Call) -> Steps[Any]:
        """Carry out a call. Returns what the script of its name returns."""
        seconds, microseconds = yield PlainCommand("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        if isinstance(call, calls.ReadQueue):
            return [now_ms]  # waiters are not known
        if isinstance(call, calls.ReadHistory):
            return [[b""]]  # there is no audit
        return (yield from self._methods[type(call)](self, call, now_ms))

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

    def _put_back(self, name: str, value: bytes | None) -> PlainCommand:
        """Return the command that undoes a GETSET of another's value, or of none."""
        if value is None:
            return PlainCommand("DEL", self._key(name))
        return PlainCommand("SET", self._key(name), value, "XX")  # unless released meanwhile

    def _list(self, name: str, end_ms: float) -> PlainCommand:
        """Return the command that puts a lock into the index, ordered by the ends of leases."""
        end = "+inf" if math.isinf(end_ms) else int(end_ms)
        return PlainCommand("ZADD", self._index_key, end, name)

    def _note(self, token: str, value: bytes, end_ms: float, now_ms: int) -> None:
        if len(self._written) > MOST_WRITTEN:
            for other, ends in list(self._written.items()):
                if max(ends.values()) < now_ms:
                    self._written.pop(other, None)
        self._written[token] = {**self._written.get(token, {}), value: end_ms}

    def _acquire(self, call: calls.Acquire, now_ms: int) -> Steps[list[int]]:
        request = call.request
        key, end_ms = self._key(request.name), now_ms + request.lease_ms
        mine = write_value(end_ms)
        if not (yield PlainCommand("SETNX", key, mine)):
            found = yield PlainCommand("GET", key)
            if found is None or end_of(found) >= now_ms:
                return _busy(found or b"", now_ms)  # if none, it was released in between
            found = yield PlainCommand("GETSET", key, mine)
            if found is not None and end_of(found) >= now_ms:
                yield self._put_back(request.name, found)
                return _busy(found, now_ms)
            found = yield PlainCommand("GET", key)
            # Another program that lost the race may have gone over it.
            if found != mine and not (yield PlainCommand("SET", key, mine, "XX")):
                return _busy(b"", now_ms)  # deleted meanwhile
        self._note(request.token, mine, end_ms, now_ms)
        yield self._list(request.name, end_ms)
        if not random.randrange(16):  # now and then, drop what has expired
            yield PlainCommand("ZREMRANGEBYSCORE", self._index_key, "-inf", now_ms - 1)
        return [now_ms * 1000, request.lease_ms, now_ms]

    def _release(self, call: calls.Release, now_ms: int) -> Steps[int]:
        value = yield from self._get(call.name)
        end_ms = self._written.get(call.token, {}).get(value, 0)
        # It counts as lost once it has surely ended. Until then no other caller can have taken it.
        held = end_ms >= now_ms
        if held:
            latest_ms = now_ms + (monotonic() - call.sent_at) * 1000
            if end_ms - latest_ms >= TOO_LATE_MS:
                yield PlainCommand("DEL", self._key(call.name))
            yield PlainCommand("ZREM", self._index_key, call.name)
        self._written.pop(call.token, None)
        return int(held)

    def _renew(self, call: calls.Renew, now_ms: int) -> Steps[list[int]]:
        left: list[int] = []
        for lease in call.leases:
            left += [(yield from self._set_lease(*lease, call.at_least, now_ms))]
        return left

    def _set_lease(
        self, name: str, token: str, lease_ms: int, at_least: bool, now_ms: int
    ) -> Steps[int]:
        """Set a lease, or read it; return what is left of it in milliseconds, -2 if it is lost."""
        end_ms = self._written.get(token, {}).get((yield from self._get(name)), 0)
        if end_ms < now_ms:
            return -2
        left_ms = _left_ms(end_ms, now_ms)
        if lease_ms == 0 or (at_least and not 0 <= left_ms <= lease_ms):
            return left_ms
        end_ms = math.inf if lease_ms < 0 else now_ms + lease_ms
        longer = write_value(end_ms)
        self._note(token, longer, end_ms, now_ms)
        old = yield PlainCommand("GETSET", self._key(name), longer)
        if old not in self._written.get(token, {}):
            yield self._put_back(name, old)
            return -2
        self._written[token] = {longer: end_ms}
        with contextlib.suppress(ResponseError):  # only the index lacks it; the lock is held
            yield self._list(name, end_ms)
        return lease_ms

    def _force_release(self, call: calls.ForceRelease, now_ms: int) -> Steps[int | None]:
        value = yield from self._get(call.name)
        ended = value is None or end_of(value) < now_ms
        if ended or token_id(_without_blanks(value)) != call.token_id:
            return 1 if call.resent else None  # probably by an earlier sending
        if not (yield PlainCommand("DEL", self._key(call.name))):
            return None  # released meanwhile
        with contextlib.suppress(ResponseError):  # only the index has it; the lock is free
            yield PlainCommand("ZREM", self._index_key, call.name)
        return 1

    def _inspect(self, call: calls.Inspect, now_ms: int) -> Steps[list[Any]]:
        answer: list[Any] = [now_ms]
        for name in call.names:
            value = yield from self._get(name)
            end_ms = 0 if value is None else end_of(value)
            held = end_ms >= now_ms
            answer += [_without_blanks(value), _left_ms(end_ms, now_ms)] if held else [None, -2]
            answer.append(None)  # waiters are not known
        return answer

    def _read_index(self, call: calls.ReadIndex, now_ms: int) -> Steps[list[bytes]]:
        if call.start:
            return calls.write_page(())  # the first page has them all
        words = ("ZRANGEBYSCORE", self._index_key, now_ms, "+inf", "WITHSCORES")
        found = yield PlainCommand(*words)
        return calls.write_page(zip(found[0::2], found[1::2], strict=True))

    _methods: ClassVar[dict[type[Call], Callable[[Any, Any, int], Steps[Any]]]] = {
        calls.Acquire: _acquire,
        calls.Release: _release,
        calls.Renew: _renew,
        calls.ForceRelease: _force_release,
        calls.Inspect: _inspect,
        calls.ReadIndex: _read_index,
    }


def _busy(value: bytes, now_ms: int) -> list[int]:
    # 3 is what ``acquire.lua`` returns for a lock without a hand-off: poll.
    return [0, _left_ms(end_of(value), now_ms), now_ms, 3]


def _without_blanks(value: bytes) -> bytes:
    """Return a value in the form of a token, which is what a blank ends in a record."""
    return value.replace(b" ", b"")
