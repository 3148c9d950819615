"""One server: its connections, keys and registries of waiters; and backends that use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import redis
from django.core import checks
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.protocol.calls import Call, Claim, GiveBack
from django_redis_lock.support.threads import cached_property_atomic, from_below
from django_redis_lock.transport.clients import BlockingClient
from django_redis_lock.transport.connections import new_connection
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packing, Replicas

if TYPE_CHECKING:
    from django_redis_lock.protocol.waiting import WaiterRegistry
    from django_redis_lock.transport.async_client import AsyncClient


class SingleServer:
    """A server, or a proxy that looks like one."""

    def __init__(self, location: Location, replicas: Replicas | None = None) -> None:
        self.location = location
        self.replicas = replicas

    @cached_property_atomic
    def pool(self) -> redis.ConnectionPool:
        """The settings of the connections. Raises ``InvalidLockBackend``."""
        pool = self.location.pool()
        check_replicas(self.replicas, pool.connection_kwargs, self.location.using)
        return pool

    @cached_property_atomic
    def client(self) -> BlockingClient:
        return BlockingClient(self.pool)

    @cached_property_atomic
    def async_client(self) -> AsyncClient:
        from django_redis_lock.transport.async_client import AsyncClient

        return AsyncClient(self.pool)

    def open(self) -> None:
        self.client  # noqa: B018 - is made when it is first read

    def close(self) -> None:
        """Close the clients; new ones are made when they are needed."""
        for attribute in ("client", "async_client"):
            client = self.__dict__.pop(attribute, None)
            if client is not None:
                client.close()


def check_replicas(replicas: Replicas | None, arguments: dict[str, Any], using: str) -> None:
    """Raise ``InvalidLockBackend`` where replicas may take as long as an answer."""
    timeout = arguments.get("socket_timeout")
    if replicas is not None and timeout and timeout <= replicas.timeout:
        raise InvalidLockBackend(
            f"LOCKS[{using!r}]['OPTIONS']['REPLICA_TIMEOUT'] is {replicas.timeout:g} s, but a "
            f"connection is given up after {timeout:g} s; make it shorter than the connection's "
            f"socket_timeout."
        )


class ScriptedServer(SingleServer):
    """A server that carries out each call in a script."""

    def __init__(
        self, location: Location, key_prefix: str, replicas: Replicas | None, poll_interval: float
    ) -> None:
        super().__init__(location, replicas)
        self.packing = Packing(key_prefix, replicas=replicas)
        self._key_prefix = key_prefix
        self._poll_interval = poll_interval

    def make_registry(self, scheme: str, give_back: GiveBack) -> WaiterRegistry:
        from django_redis_lock.protocol.waiting import WaiterRegistry
        from django_redis_lock.transport.receiving import (
            PoppedList,
            ReceivingRegistry,
            Subscription,
        )

        if scheme == "poll":
            return WaiterRegistry(self._poll_interval, give_back)
        receiver = PoppedList if scheme == "blpop" else Subscription
        return ReceivingRegistry(
            receiver(lambda: new_connection(self.pool), self._key_prefix),
            give_back,
            # A lock that was handed off counts only once the replicas have it, too.
            confirming=self.replicas is not None,
        )

    def call(self, call: Call) -> Any:
        if type(call) is Claim:
            return self.client.post(self.packing.pack(call))
        reply = self.client.call(self.packing.pack(call))
        return reply if type(reply) is int else numbers(reply)

    async def acall(self, call: Call) -> Any:
        if type(call) is Claim:
            return self.async_client.post(self.packing.pack(call))
        return numbers(await self.async_client.call(self.packing.pack(call)))


class ServersLockBackend(BaseLockBackend):
    """A backend with servers, which LOCATION names."""

    location: Location
    servers: Any
    """One server, or a cluster; ``call`` and ``acall`` raise the errors of redis-py."""

    @property
    def pool(self) -> Any:
        """The connections to the server, or to one of the masters of a cluster."""
        return self.servers.pool

    def databases(self) -> set[Hashable]:
        return self.location.databases()

    def name_maker(self) -> Callable[[str], str] | None:
        return self.location.name_maker()

    def renewal_group(self, name: str) -> Any:
        return self.servers.renewal_group(name) if self.location.urls else None

    def check(self) -> list[checks.CheckMessage]:
        return self.location.check()

    def open(self) -> None:
        super().open()
        self.servers.open()
        from django_redis_lock.backends import errors  # noqa: F401

    def close(self) -> None:
        super().close()
        self.servers.close()

    def call(self, call: Call) -> Any:
        handled = sys.exception()
        try:
            return self.servers.call(call)
        except from_below(RedisError, OSError) as error:
            raise self._error(call, error, handled) from error

    async def acall(self, call: Call) -> Any:
        handled = sys.exception()
        try:
            return await self.servers.acall(call)
        except (RedisError, OSError) as error:
            raise self._error(call, error, handled) from error

    def _error(self, call: Call, error: Exception, handled: BaseException | None) -> LockError:
        from django_redis_lock.backends.errors import lock_error

        # Some frames of redis-py keep the error, which would keep the handles of all callers.
        each: BaseException | None = error
        while each is not None and each is not handled:
            each.__traceback__ = None
            each = each.__context__
        return lock_error(call, error, using=self.alias, key_prefix=self.key_prefix)


def numbers(reply: Any) -> Any:
    """Return the numbers in a text reply. Scripts send them as text, which is read faster."""
    return list(map(int, reply.split())) if isinstance(reply, bytes) else reply
