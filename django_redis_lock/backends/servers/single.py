"""One server: its connections, its keys, and the hubs of its waiters."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import redis

from django_redis_lock.backends.index import Index, read_whole
from django_redis_lock.backends.servers.base import Servers, numbers
from django_redis_lock.protocol.calls import Call, Peek
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.support.process import made_once
from django_redis_lock.transport.clients import BlockingClient
from django_redis_lock.transport.connections import asyncio_connection, listening_connection
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packing, Replicas
from django_redis_lock.transport.popping import PoppedList
from django_redis_lock.transport.receiving import ReceivingHub, Subscription

if TYPE_CHECKING:
    from django_redis_lock.transport.async_client import AsyncClient


class SingleServer(Servers):
    """A server, or a proxy that looks like one."""

    @made_once
    def pool(self) -> redis.ConnectionPool:
        """The settings of the connections."""
        return self.location.pool()

    @made_once
    def client(self) -> BlockingClient:
        self.timeout_of(self.pool)
        return BlockingClient(self.pool)

    @made_once
    def async_client(self) -> AsyncClient:
        from django_redis_lock.transport.async_client import AsyncClient

        timeout = self.timeout_of(self.pool)
        return AsyncClient(lambda: asyncio_connection(self.pool), timeout)


class ScriptedServer(SingleServer):
    """A server that carries out each call in a script."""

    def __init__(
        self,
        location: Location,
        key_prefix: str,
        replicas: Replicas | None,
        poll_interval: float,
        give_back: Callable[[str, str, float], object],
    ) -> None:
        super().__init__(location, replicas)
        self.packing = Packing(key_prefix, replicas=replicas)
        self._key_prefix = key_prefix
        self._poll_interval = poll_interval
        self._give_back = give_back
        self._hubs: dict[str, Hub] = {}

    def hub(self, scheme: str) -> Hub:
        """Return the hub of a waiting scheme, made when it is first used."""
        hub = self._hubs.get(scheme)
        if hub is None:  # where two threads make one, both use the same
            hub = self._hubs.setdefault(scheme, self._make_hub(scheme))
        return hub

    def _make_hub(self, scheme: str) -> Hub:
        if scheme == "poll":
            return Hub(interval=self._poll_interval, peeks=True)
        receiver = PoppedList if scheme == "blpop" else Subscription
        return ReceivingHub(
            receiver(lambda: listening_connection(self.pool), f"{self._key_prefix}-grant"),
            self._give_back,
            # A lock that was handed off counts only once the replicas have it, too.
            confirming=self.replicas is not None,
        )

    def freed(self, name: str) -> None:
        """Tell the hubs that this process has released a lock."""
        for hub in [*self._hubs.values()]:
            hub.freed(name)

    def close(self) -> None:
        for hub in [*self._hubs.values()]:
            hub.close()
        super().close()

    def pools(self) -> list[redis.ConnectionPool]:
        return [self.pool]

    def packing_at(self, pool: redis.ConnectionPool) -> Packing:
        return self.packing

    def together(self, name: str) -> Hashable:
        """Return the same for all locks: one round trip renews them all."""
        return None

    def call(self, call: Call) -> Any:
        reply = self.client.call(self.packing.pack(call))
        return reply if type(reply) is int else _answer(call, reply)

    async def acall(self, call: Call) -> Any:
        return _answer(call, await self.async_client.call(self.packing.pack(call)))

    def post(self, call: Call) -> None:
        """Send a call without waiting for the reply. Raises ``RedisError`` and ``OSError``.

        It may share a packet with the next call; otherwise it leaves within about 200 ms.
        """
        self.client.post(self.packing.pack(call))

    async def apost(self, call: Call) -> None:
        self.async_client.post(self.packing.pack(call))

    def read_index(self, pattern: str, size: int) -> Steps[Index]:
        return read_whole(pattern, size)


def _answer(call: Call, reply: Any) -> Any:
    return reply if isinstance(call, Peek) else numbers(reply)
