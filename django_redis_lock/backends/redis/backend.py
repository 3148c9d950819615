"""Locks on one Redis or Valkey server."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import redis
from django.core import checks
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.waiting import WAITING_SCHEMES, Hub
from django_redis_lock.support.arguments import check_timeout
from django_redis_lock.support.process import made_once
from django_redis_lock.support.text import keep_secrets
from django_redis_lock.transport.async_client import AsyncClient
from django_redis_lock.transport.clients import BlockingClient, is_read_only
from django_redis_lock.transport.connections import asyncio_connection, listening_connection
from django_redis_lock.transport.hubs import Hubs
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packing, Replicas
from django_redis_lock.transport.polling import POLL_OPTIONS, Polling, poll_options

REPLICA_TIMEOUT = 1.0
"""Seconds that replicas may take to acknowledge a lock, where OPTIONS say nothing of it."""


class RedisLockBackend(BaseLockBackend):
    """Locks on one server, in scripts that do each operation whole.

    LOCATION is an alias of CACHES that django-redis serves, its Sentinel client included; or a URL;
    or a list of URLs, of some nodes of a cluster.
    OPTIONS["WAIT"] says how waiters hear of their turn: ``queue`` by pub/sub, ``blpop`` from a
    list, ``poll`` by looking. Whichever it is, they are served in the order in which they came.
    OPTIONS["REPLICAS"] is how many replicas have to know of a lock before it counts as acquired,
    and OPTIONS["REPLICA_TIMEOUT"] how many seconds that may take.
    """

    supports_many = True
    options: ClassVar[tuple[str, ...]] = ("WAIT", *POLL_OPTIONS, "REPLICAS", "REPLICA_TIMEOUT")

    def __new__(cls, alias: str, params: dict[str, Any], *more: Any) -> RedisLockBackend:
        """Make the backend for a cluster where LOCATION is a list."""
        if cls is RedisLockBackend and isinstance(params.get("LOCATION"), list | tuple):
            from django_redis_lock.backends.cluster.backend import RedisClusterLockBackend

            return super().__new__(RedisClusterLockBackend)
        return super().__new__(cls)

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        """Take in LOCATION and OPTIONS; no connection is made. Raises ``InvalidLockBackend``."""
        self.location = Location("default" if location is None else location, self.alias)
        self.wait = wait = options.get("WAIT", "queue")
        if wait not in WAITING_SCHEMES:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['WAIT'] is {wait!r}; "
                f"it can be {' or '.join(map(repr, WAITING_SCHEMES))}."
            )
        polling = poll_options(self.alias, options)
        self.replicas = check_replicas(self.alias, options)
        # The scripts that take and release several locks do not wait for replicas.
        self.supports_many = self.replicas is None
        self._connect(polling)

    def _connect(self, polling: Polling) -> None:
        """Make what sends calls and hears of grants; nothing is sent yet."""
        self._packing = Packing(self.key_prefix, replicas=self.replicas)
        self._hubs = Hubs(
            lambda: listening_connection(self.pool),
            f"{self.key_prefix}-grant",
            polling,
            self._give_back,
            # A grant that was handed over counts only once the replicas know of it, too.
            confirming=self.replicas is not None,
        )
        self.hub = self._hubs[self.wait]

    def _give_back(self, name: str, token: str, seconds: float) -> None:
        """Release a lock that was handed over to one who waits no more, unless it was claimed."""
        call = calls.Release(name, token, patient=False, unclaimed=True)
        renewer.withdraw(call, self, seconds, at_once=True)

    def databases(self) -> set[Hashable]:
        """Return where its keys are, as far as the settings tell."""
        return self.location.databases()

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return self.location.check()

    def open(self) -> None:
        """Import and make what calls need; no connection is made. Raises ``InvalidLockBackend``."""
        self._client  # noqa: B018 - is made when first read

    def close(self) -> None:
        """Let go of connections; the backend can be used again afterwards."""
        for hub in self._hubs:
            hub.close()
        self._close_clients()

    def _close_clients(self) -> None:
        for attribute in ("_client", "_async_client"):
            client = self.__dict__.pop(attribute, None)
            if client is not None:
                client.close()
        if "pool" in self.__dict__ and self.location.alias is None:
            self.pool.disconnect()

    def hub_for(self, wait: str | None) -> Hub:
        """Return where those wait who chose a waiting scheme; ``None`` for that of the backend."""
        return self.hub if wait is None else self._hubs[wait]

    def freed(self, name: str) -> None:
        """Take in that this process has released a lock."""
        for hub in self._hubs:
            hub.freed(name)

    @made_once
    def pool(self) -> redis.ConnectionPool:
        """The connections: django-redis's own where LOCATION is an alias."""
        return self.location.pool()

    def pools(self) -> list[redis.ConnectionPool]:
        """Return the connections to each server that takes locks. Raises ``RedisError``."""
        return [self.pool]

    def packing_at(self, pool: redis.ConnectionPool) -> Packing:
        """Return keys that are on one of the servers."""
        return self._packing

    def _patience(self, pool: redis.ConnectionPool) -> float | None:
        """Return the timeout (s) of a pool's connections; replicas must not take as long."""
        timeout: float | None = pool.connection_kwargs.get("socket_timeout")
        if self.replicas is not None and timeout and timeout <= self.replicas.timeout:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['OPTIONS']['REPLICA_TIMEOUT'] is "
                f"{self.replicas.timeout:g} s, but a connection is given up after {timeout:g} s; "
                f"make it shorter than the connection's socket_timeout."
            )
        return timeout

    @made_once
    def _client(self) -> BlockingClient:
        self._patience(self.pool)
        return BlockingClient(self.pool)

    @made_once
    def _async_client(self) -> AsyncClient:
        timeout = self._patience(self.pool)
        return AsyncClient(lambda: asyncio_connection(self.pool), timeout)

    def call(self, call: Call) -> Any:
        """Carry out one call. Raises ``LockUnavailable``."""
        try:
            return self._carry_out(call)
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    async def acall(self, call: Call) -> Any:
        """Carry out one call under asyncio. Raises ``LockUnavailable``."""
        try:
            return await self._acarry_out(call)
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    def post(self, call: Call) -> None:
        """Send a call whose reply nobody needs, and don't wait for it. Raises ``LockUnavailable``.

        It may share a packet with the next call, and leaves within about 200 ms without one.
        """
        try:
            self._client.post(self._packing.pack(call))
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    async def apost(self, call: Call) -> None:
        """Send a call whose reply nobody needs, as ``post`` does; a failure is not told."""
        self._async_client.post(self._packing.pack(call))

    def _carry_out(self, call: Call) -> Any:
        return _answer(call, self._client.call(self._packing.pack(call)))

    async def _acarry_out(self, call: Call) -> Any:
        return _answer(call, await self._async_client.call(self._packing.pack(call)))

    def _error(self, call: Call, error: Exception) -> LockError:
        name = getattr(call, "name", "") or getattr(getattr(call, "request", None), "name", "")
        why = reason(error)
        if isinstance(error, ResponseError) and "WRONGTYPE" in why:
            return LockError(
                f"What is stored for lock {name!r} under {self.key_prefix!r} was written by "
                f"another program and is no lock: {why}. Choose another KEY_PREFIX.",
                name=name,
            )
        what = "refused" if refused(error) else "can't be asked"
        unavailable = LockUnavailable(f"LOCKS[{self.alias!r}] {what}: {why}", name=name)
        unavailable.refused, unavailable.passing = refused(error), passes(error)
        unavailable.undone = unavailable.refused and isinstance(call, calls.Breaking)
        return unavailable


def reason(error: Exception) -> str:
    """Return why a server could not be asked, with what to do where it has no scripts.

    No secret is in it, nor left in the error.
    """
    why = _WHERE_IN_SCRIPT.sub("", keep_secrets(error))
    if isinstance(error, MasterNotFoundError):
        return why.partition(" : ")[0]  # what follows are the arguments of every connection
    if isinstance(error, ResponseError) and _NO_SCRIPTS.search(why):
        return f"the server has no Lua scripts ({why}); {_WITHOUT_SCRIPTS}"
    if isinstance(error, ResponseError) and _NO_PERMISSION_FOR_SCRIPTS.search(why):
        return f"{why}; allow scripts, or {_WITHOUT_SCRIPTS}"
    return why


_WHERE_IN_SCRIPT = re.compile(r"\.?\s*script: \w+, on @user_script:\d+\.?$")
_NO_SCRIPTS = re.compile(r"(unknown|unsupported) command .?eval", re.IGNORECASE)
_NO_PERMISSION_FOR_SCRIPTS = re.compile(r"no permissions to run the 'eval", re.IGNORECASE)
_WITHOUT_SCRIPTS = (
    "use the backend 'django_redis_lock.backends.getset.GetSetLockBackend', which needs none"
)


def refused(error: Exception) -> bool:
    """Whether a server answered that it does not do what was asked, so that nothing was done."""
    return isinstance(error, ResponseError) and not _says(error, _IN_DOUBT)


def passes(error: Exception) -> bool:
    """Whether it may soon be over: silence, a failover, the moving of a slot, a slow script."""
    if not isinstance(error, ResponseError) or isinstance(error, _PASSING):
        return True
    return is_read_only(error) or _says(error, _IN_DOUBT) or str(error).startswith("BUSY ")


def _says(error: Exception, words: tuple[str, ...]) -> bool:
    text = str(error)
    return any(some in text for some in words)


# redis-py has classes for these, and takes the word that opens the error off its text.
_PASSING = (AskError, ClusterDownError, MasterDownError, MovedError, TryAgainError)
# For these it has none. A part of what was asked may have been done.
_IN_DOUBT = (
    "UNBLOCKED",  # a master that was demoted while it waited for replicas
    "replica instances",  # or before
    "non local key",  # the slot went away under the script's hands
    "cluster is down",
)


def check_replicas(using: str, options: dict[str, Any]) -> Replicas | None:
    """Return what OPTIONS say of replicas. Raises ``InvalidLockBackend``."""
    where = f"LOCKS[{using!r}]['OPTIONS']"
    number = options.get("REPLICAS", 0)
    if type(number) is not int or number < 0:
        raise InvalidLockBackend(
            f"{where}['REPLICAS'] is {number!r}; it must be how many replicas have to know of a "
            f"lock, an int from 0 up."
        )
    if "REPLICA_TIMEOUT" in options and not number:
        raise InvalidLockBackend(
            f"{where} has REPLICA_TIMEOUT without REPLICAS; add how many replicas to wait for, or "
            f"leave it out."
        )
    if not number:
        return None
    try:
        timeout = check_timeout(options.get("REPLICA_TIMEOUT", REPLICA_TIMEOUT), "REPLICA_TIMEOUT")
    except (TypeError, ValueError) as error:
        raise InvalidLockBackend(f"{where}: {error}") from None
    if timeout is None:
        raise InvalidLockBackend(
            f"{where}['REPLICA_TIMEOUT'] is None; a lock must not wait for replicas for ever, so "
            f"give it some seconds."
        )
    return Replicas(number, timeout)


def _answer(call: Call, answer: Any) -> Any:
    return answer if isinstance(call, calls.Glance) else numbers(answer)


def numbers(answer: Any) -> Any:
    """Return the numbers in an answer that is a text; one text is read faster than an array."""
    return list(map(int, answer.split())) if isinstance(answer, bytes) else answer
