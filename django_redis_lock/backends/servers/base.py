"""What one server and a cluster have in common, and the backends that use them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import redis
from django.core import checks
from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.servers.errors import lock_error
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.protocol.calls import Call
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Replicas


class Servers:
    """The servers of one backend: one server, or the nodes of a cluster."""

    pool: Any
    """The connections to the server, or to one of the masters of a cluster."""
    client: Any
    """Sends blocking calls; made when it is first read."""
    async_client: Any
    """Sends calls under asyncio; made when it is first read."""

    def __init__(self, location: Location, replicas: Replicas | None = None) -> None:
        self.location = location
        self.replicas = replicas

    def open(self) -> None:
        """Make what calls need, without connecting. Raises ``InvalidLockBackend``."""
        self.client  # noqa: B018 - is made when it is first read

    def close(self) -> None:
        """Close the clients; new ones are made when they are needed."""
        for attribute in ("client", "async_client"):
            client = self.__dict__.pop(attribute, None)
            if client is not None:
                client.close()

    def timeout_of(self, pool: redis.ConnectionPool) -> float | None:
        """Return the socket timeout of a pool in seconds.

        Raises ``InvalidLockBackend`` where replicas may take as long as that.
        """
        timeout: float | None = pool.connection_kwargs.get("socket_timeout")
        if self.replicas is not None and timeout and timeout <= self.replicas.timeout:
            raise InvalidLockBackend(
                f"LOCKS[{self.location.using!r}]['OPTIONS']['REPLICA_TIMEOUT'] is "
                f"{self.replicas.timeout:g} s, but a connection is given up after {timeout:g} s; "
                f"make it shorter than the connection's socket_timeout."
            )
        return timeout


class ServersLockBackend(BaseLockBackend):
    """A backend with servers, which LOCATION names."""

    location: Location
    servers: Any
    """The ``Servers``; ``call`` and ``acall`` carry out a call, or raise an error of redis-py."""

    @property
    def pool(self) -> redis.ConnectionPool:
        """The connections to the server, or to one of the masters of a cluster."""
        pool: redis.ConnectionPool = self.servers.pool
        return pool

    def databases(self) -> set[Hashable]:
        return self.location.databases()

    def check(self) -> list[checks.CheckMessage]:
        return self.location.check()

    def open(self) -> None:
        self.servers.open()

    def close(self) -> None:
        self.servers.close()

    def call(self, call: Call) -> Any:
        try:
            return self.servers.call(call)
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    async def acall(self, call: Call) -> Any:
        try:
            return await self.servers.acall(call)
        except (RedisError, OSError) as error:
            raise self._error(call, error) from error

    def _error(self, call: Call, error: Exception) -> LockError:
        return lock_error(call, error, using=self.alias, key_prefix=self.key_prefix)


def numbers(reply: Any) -> Any:
    """Return the numbers in a text reply. Scripts send them as text, which is read faster."""
    return list(map(int, reply.split())) if isinstance(reply, bytes) else reply
