"""Backends with one server or a cluster: connections, keys and registries of waiters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar

import redis
from django.core import checks
from redis.exceptions import RedisError

from django_redis_lock.backends import settings
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.renewal import renewer
from django_redis_lock.exceptions import LockError
from django_redis_lock.protocol.calls import Call, Claim, GiveBack, Release
from django_redis_lock.support.arguments import WAITING_SCHEMES
from django_redis_lock.support.threads import cached_property_atomic, from_below
from django_redis_lock.transport.clients import BlockingClient
from django_redis_lock.transport.connections import new_connection
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packing, Replicas, numbers

if TYPE_CHECKING:
    from django_redis_lock.backends.clusters import Cluster
    from django_redis_lock.protocol.waiting import WaiterRegistry
    from django_redis_lock.transport.async_client import AsyncClient


class SingleServer:
    """A server, or a proxy that looks like one."""

    def __init__(self, location: Location, replicas: Replicas | None = None) -> None:
        self.location, self.replicas = location, replicas

    @cached_property_atomic
    def pool(self) -> redis.ConnectionPool:
        """The settings of the connections. Raises ``InvalidLockBackend``."""
        pool = self.location.pool()
        settings.check_replicas(self.replicas, pool.connection_kwargs, self.location.using)
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
        for attribute in ("client", "async_client"):
            client = self.__dict__.pop(attribute, None)
            if client is not None:
                client.close()


class ScriptedServer(SingleServer):
    """A server that carries out each call in a script."""

    def __init__(
        self, location: Location, key_prefix: str, replicas: Replicas | None, poll_interval: float
    ) -> None:
        super().__init__(location, replicas)
        self.packing = Packing(key_prefix, replicas=replicas)
        self._key_prefix, self._poll_interval = key_prefix, poll_interval

    def make_registry(self, scheme: str, give_back: GiveBack) -> WaiterRegistry:
        from django_redis_lock.protocol.waiting import WaiterRegistry
        from django_redis_lock.transport import receiving

        if scheme == "poll":
            return WaiterRegistry(self._poll_interval, give_back)
        kind = receiving.PoppedList if scheme == "blpop" else receiving.Subscription
        receiver = kind(lambda: new_connection(self.pool), self._key_prefix)
        # A lock that was handed off counts only once the replicas have it, too.
        confirming = self.replicas is not None
        return receiving.ReceivingRegistry(receiver, give_back, confirming=confirming)

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
    servers: Any  # one server, or a cluster; ``call`` and ``acall`` raise the errors of redis-py

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


class RedisLockBackend(ServersLockBackend):
    """Locks on one server or a cluster, with a Lua script for each operation.

    LOCATION is an alias of CACHES that django-redis (its Sentinel client included) or Django's
    RedisCache serves, a URL, or, for a cluster, a list of URLs of some of its nodes.

    OPTIONS["WAIT"] is the notification mode: ``queue`` by pub/sub, ``blpop`` from a list, ``poll``
    with a heartbeat every OPTIONS["POLL_INTERVAL"] seconds. All waiters wait in one queue, and are
    served in order of arrival. In a cluster the mode is ``queue``.

    OPTIONS["REPLICAS"] is how many replicas must have a lock before it counts as acquired, and
    OPTIONS["REPLICA_TIMEOUT"] how many seconds they may take.
    """

    options: ClassVar[tuple[str, ...]] = ("WAIT", "POLL_INTERVAL", "REPLICAS", "REPLICA_TIMEOUT")
    schemes: ClassVar[tuple[str, ...]] = WAITING_SCHEMES
    runs_scripts: ClassVar[bool] = True
    servers: ScriptedServer | Cluster

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.location = Location("default" if location is None else location, self.alias)
        self.wait = settings.read_wait(options, self.alias)
        self.replicas = settings.read_replicas(options, self.alias)
        interval = settings.read_poll_interval(options, self.alias)
        if self.location.urls:
            from django_redis_lock.backends.clusters import Cluster
            from django_redis_lock.backends.clusters.topology import SHARDS

            self.servers = Cluster(self.location, self.key_prefix, self.replicas)
            self.servers.check_scheme(self.wait)
            self.indexes = SHARDS
        else:
            self.servers = ScriptedServer(self.location, self.key_prefix, self.replicas, interval)

    def make_registry(self, scheme: str) -> WaiterRegistry:
        def give_back(call: Release, seconds: float) -> None:  # from a former waiter
            renewer.withdraw(call, self, seconds, at_once=True)

        return self.servers.make_registry(scheme, give_back)
