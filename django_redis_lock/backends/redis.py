"""Locks on one Redis or Valkey server."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import redis
from django.core import checks
from redis.exceptions import RedisError, ResponseError

from django_redis_lock import scripts, steps
from django_redis_lock.audit import CAP, Fields
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.location import Location
from django_redis_lock.connections import (
    AsyncClient,
    BlockingClient,
    Packed,
    asyncio_connection,
    listening_connection,
)
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.polling import POLL_OPTIONS, poll_options
from django_redis_lock.schemes import Hubs
from django_redis_lock.steps import Call
from django_redis_lock.transacting import AsyncTransactingClient, TransactingClient
from django_redis_lock.waiting import WAITING_SCHEMES, Hub


class RedisLockBackend(BaseLockBackend):
    """Locks on one server, in scripts that do each operation whole.

    LOCATION is an alias of CACHES that django-redis serves, or a URL.
    OPTIONS["WAIT"] says how waiters hear of their turn: ``queue`` by pub/sub, ``blpop`` from a
    list, ``poll`` by looking. Whichever it is, they are served in the order in which they came.
    """

    supports_many = True
    options: ClassVar[tuple[str, ...]] = ("WAIT", *POLL_OPTIONS)

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Take in LOCATION and OPTIONS; no connection is made. Raises ``InvalidLockBackend``."""
        self.location = Location("default" if location is None else location, self.alias)
        self.wait = wait = options.get("WAIT", "queue")
        if wait not in WAITING_SCHEMES:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['WAIT'] is {wait!r}; "
                f"it can be {' or '.join(map(repr, WAITING_SCHEMES))}."
            )
        self._lock_prefix = f"{self.key_prefix}:"
        self._queue_prefix = f"{self.key_prefix}-queue:"
        self._index_key = f"{self.key_prefix}-index"
        self._fence_key = f"{self.key_prefix}-fence"
        self._audit_key = f"{self.key_prefix}-audit"
        self._hubs = Hubs(
            lambda: listening_connection(self.pool),
            f"{self.key_prefix}-grant",
            poll_options(self.alias, options),
        )
        self.hub = self._hubs[wait]
        self.supports_many = wait != "poll"  # that takes a script

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return self.location.check()

    def close(self) -> None:
        """Let go of connections; the backend can be used again afterwards."""
        for hub in self._hubs:
            hub.close()
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()
        self.__dict__.pop("_async_client", None)  # each loop closes its own connection
        if "pool" in self.__dict__ and self.location.alias is None:
            self.pool.disconnect()

    def hub_for(self, wait: str | None) -> Hub:
        """Return where those wait who chose a waiting scheme; ``None`` for that of the backend."""
        return self.hub if wait is None else self._hubs[wait]

    def freed(self, name: str) -> None:
        """Take in that this process has released a lock."""
        for hub in self._hubs:
            hub.freed(name)

    @cached_property
    def pool(self) -> redis.ConnectionPool:
        """The connections: django-redis's own where LOCATION is an alias."""
        return self.location.pool()

    @cached_property
    def _client(self) -> BlockingClient:
        kind = TransactingClient if self.wait == "poll" else BlockingClient
        return kind(self.pool)

    @cached_property
    def _async_client(self) -> AsyncClient:
        timeout = self.pool.connection_kwargs.get("socket_timeout")
        kind = AsyncTransactingClient if self.wait == "poll" else AsyncClient
        return kind(lambda: asyncio_connection(self.pool), timeout)

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        try:
            return _answer(call, self._client.call(self._pack(call)))
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        try:
            return _answer(call, await self._async_client.call(self._pack(call)))
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    def _error(self, call: Call, error: Exception) -> LockError:
        name = getattr(call, "name", "") or getattr(getattr(call, "request", None), "name", "")
        if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
            return LockError(
                f"What is stored for lock {name!r} under {self.key_prefix!r} was written by "
                f"another program and is no lock: {error}. Choose another KEY_PREFIX.",
                name=name,
            )
        unavailable = LockUnavailable(f"LOCKS[{self.alias!r}] can't be asked: {error}", name=name)
        unavailable.refused = isinstance(error, ResponseError)
        return unavailable

    def _pack(self, call: Call) -> Packed:
        script, encode = _ENCODERS[type(call)]
        keys, args = encode(self, call)
        return Packed(script, keys, args, call.sending)

    def _keys(self, name: str) -> list[str]:
        return [
            self._lock_prefix + name,
            self._queue_prefix + name,
            self._index_key,
            self._fence_key,
        ]

    def _encode_acquire(self, call: steps.Acquire) -> _Encoded:
        request = call.request
        return self._keys(request.name), [
            request.token,
            str(request.lease_ms),
            request.record,
            request.name,
            call.channel,
        ]

    def _encode_acquire_many(self, call: steps.AcquireMany) -> _Encoded:
        args = []
        for request in call.requests:
            args += [request.token, str(request.lease_ms), request.record, request.name]
        return self._keys_of_many([request.name for request in call.requests]), args

    def _encode_release_many(self, call: steps.ReleaseMany) -> _Encoded:
        names = [name for name, _ in call.holds]
        return self._keys_of_many(names), [
            item for name, token in call.holds for item in (token, name)
        ]

    def _keys_of_many(self, names: list[str]) -> list[str]:
        first, *others = names
        keys = self._keys(first)
        for name in others:
            keys += self._keys(name)[:2]
        return keys

    def _encode_take_over(self, call: steps.TakeOver) -> _Encoded:
        request = call.request
        return self._keys(request.name), [
            request.token,
            str(request.lease_ms),
            request.record,
            request.name,
            call.token_id,
        ]

    def _encode_release(self, call: steps.Release) -> _Encoded:
        return self._keys(call.name), [call.token, call.name, call.entry]

    def _encode_force_release(self, call: steps.ForceRelease) -> _Encoded:
        entry = _pairs(call.entry)
        return [*self._keys(call.name), self._audit_key], [
            call.name,
            call.token_id,
            str(CAP),
            *entry,
        ]

    def _encode_note_losses(self, call: steps.NoteLosses) -> _Encoded:
        args = [str(CAP), "0" if call.first_sent_at is None else "1"]
        for entry in call.entries:
            pairs = _pairs(entry)
            args += [entry["token_id"], str(len(pairs)), *pairs]
        return [self._audit_key], args

    def _encode_read_history(self, call: steps.ReadHistory) -> _Encoded:
        return [self._audit_key], [call.name, str(call.limit)]

    def _encode_read_line(self, call: steps.ReadLine) -> _Encoded:
        return [self._queue_prefix + call.name], []

    def _encode_renew(self, call: steps.Renew) -> _Encoded:
        keys, args = [self._index_key], []
        for name, token, lease_ms in call.leases:
            keys += [self._lock_prefix + name, self._queue_prefix + name]
            args += [name, token, f"+{lease_ms}" if call.at_least else str(lease_ms)]
        return keys, args

    def _encode_inspect(self, call: steps.Inspect) -> _Encoded:
        keys = []
        for name in call.names:
            keys += [self._lock_prefix + name, self._queue_prefix + name]
        return keys, []

    def _encode_glance(self, call: steps.Glance) -> _Encoded:
        return [self._lock_prefix + call.name], []

    def _encode_read_index(self, call: steps.ReadIndex) -> _Encoded:
        return [self._index_key], [call.start, str(call.offset), str(call.count)]


def _answer(call: Call, answer: Any) -> Any:
    return answer if isinstance(call, steps.Glance) else numbers(answer)


def numbers(answer: Any) -> Any:
    """Return the numbers in an answer that is a text; one text is read faster than an array."""
    return list(map(int, answer.split())) if isinstance(answer, bytes) else answer


def _pairs(entry: Fields) -> list[str]:
    return [part for pair in entry.items() for part in pair]


_Encoded = tuple[list[str], list[str]]
_Encoder = tuple[scripts.Script | scripts.Command, Callable[[Any, Any], _Encoded]]
_ENCODERS: dict[type[Call], _Encoder] = {
    steps.Acquire: (scripts.ACQUIRE, RedisLockBackend._encode_acquire),
    steps.AcquireMany: (scripts.ACQUIRE_MANY, RedisLockBackend._encode_acquire_many),
    steps.TakeOver: (scripts.TAKE_OVER, RedisLockBackend._encode_take_over),
    steps.Release: (scripts.RELEASE, RedisLockBackend._encode_release),
    steps.ReleaseMany: (scripts.RELEASE_MANY, RedisLockBackend._encode_release_many),
    steps.Renew: (scripts.RENEW, RedisLockBackend._encode_renew),
    steps.Glance: (scripts.GET, RedisLockBackend._encode_glance),
    steps.Inspect: (scripts.INSPECT, RedisLockBackend._encode_inspect),
    steps.ForceRelease: (scripts.FORCE_RELEASE, RedisLockBackend._encode_force_release),
    steps.NoteLosses: (scripts.NOTE_LOSSES, RedisLockBackend._encode_note_losses),
    steps.ReadHistory: (scripts.HISTORY, RedisLockBackend._encode_read_history),
    steps.ReadLine: (scripts.WAITING, RedisLockBackend._encode_read_line),
    steps.ReadIndex: (scripts.INDEX, RedisLockBackend._encode_read_index),
}
