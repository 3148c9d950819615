"""Locks by SETNX and GETSET, for servers and proxies without scripts and beside other programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from django_redis_lock.backends.getset.exchanges import NAME, Exchanges
from django_redis_lock.backends.getset.timestamps import FORMATS, Word, read_stamp
from django_redis_lock.backends.servers.base import ServersLockBackend
from django_redis_lock.backends.servers.single import SingleServer
from django_redis_lock.backends.settings import read_choice, read_poll_interval
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol.calls import Call, Inspect
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import Steps, adrive, drive
from django_redis_lock.protocol.records import Holder, moment, read_holder, token_id
from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.scripts import Command


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
    Waiters look every OPTIONS["POLL_INTERVAL"] seconds.
    """

    options: ClassVar[tuple[str, ...]] = ("FORMAT", "KEY", "POLL_INTERVAL")

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.location = Location("default" if location is None else location, self.alias)
        if self.location.urls:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['LOCATION'] is a list, but this backend uses one server, "
                f"or a proxy that looks like one; write an alias of CACHES, or a URL."
            )
        form = read_choice(options, "FORMAT", FORMATS, self.alias)
        self.hub = Hub(interval=read_poll_interval(options, self.alias), channel="")
        key = options.get("KEY", f"{self.key_prefix}:{NAME}")
        if not isinstance(key, str) or key.count(NAME) != 1:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['KEY'] is {key!r}; it must be a str that has "
                f"{NAME} in it once, such as 'lock.{NAME}'."
            )
        self.lock_keys = key.partition(NAME)[0]
        exchanges = Exchanges(self.key_prefix, key, form, self.hub.freed)
        self.servers = _PlainServer(self.location, exchanges)

    def _read(self, names: list[str]) -> Steps[list[Holder]]:
        now_ms, *rest = yield from ask(Inspect(names))
        found = zip(names, rest[0::3], rest[1::3], strict=False)
        return [
            self._holder(name, value, ttl_ms, now_ms)
            for name, value, ttl_ms in found
            if value is not None
        ]

    def _holder(self, name: str, value: bytes, ttl_ms: int, now_ms: int) -> Holder:
        stamp = read_stamp(value)
        known = b"%b %d %b" % (stamp.token, stamp.fence, stamp.record)
        holder = read_holder(
            known, name=name, using=self.alias, ttl_ms=ttl_ms, waiters=None, now_ms=now_ms
        )
        began_ms = stamp.acquired_ms
        return replace(
            holder,
            token_id=token_id(stamp.token or value),
            fence=stamp.fence or None,
            acquired_at=None if began_ms is None else moment(began_ms * 1000),
            held_for=None if began_ms is None else max(0.0, (now_ms - began_ms) / 1000),
        )


class _PlainServer(SingleServer):
    """A server that carries out each call in some plain commands."""

    def __init__(self, location: Location, exchanges: Exchanges) -> None:
        super().__init__(location)
        self.exchanges = exchanges

    def call(self, call: Call) -> Any:
        return drive(_Port(self, call), self.exchanges.carry_out(call))

    async def acall(self, call: Call) -> Any:
        return await adrive(_Port(self, call), self.exchanges.carry_out(call))


class _Port:
    """Sends the commands of one call, which counts as sent when the first of them is."""

    def __init__(self, server: SingleServer, call: Call) -> None:
        self._server = server
        self._sending = call.sending
        self._until = call.until

    def send(self, words: tuple[Word, ...]) -> Any:
        return self._server.client.call(self._plain(words))

    async def asend(self, words: tuple[Word, ...]) -> Any:
        return await self._server.async_client.call(self._plain(words))

    def _plain(self, words: tuple[Word, ...]) -> Packed:
        sending, self._sending = self._sending, _nothing
        kind = _Set if words[0] == "SET" else Packed
        command = Command(str(words[0]))
        return kind(command, (), words[1:], sending, until=self._until)


def _nothing() -> None:
    pass


class _Set(Packed):
    """A command that is answered with OK."""

    __slots__ = ()

    says_ok = True
