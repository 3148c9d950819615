"""Clients that send calls to the nodes of a cluster, and follow slots that move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.exceptions import ClusterDownError, MovedError, RedisError, ResponseError

from django_redis_lock.backends.servers.topology import Address, Topology
from django_redis_lock.transport.async_client import AsyncClient
from django_redis_lock.transport.clients import BlockingClient, is_read_only
from django_redis_lock.transport.connections import asyncio_connection
from django_redis_lock.transport.packing import Packed

REDIRECTIONS = 5
"""How often a call is redirected before it counts as unanswered."""

Part = tuple[int, Packed]
"""A slot, and a call on keys of that slot."""
TimeoutOf = Callable[[redis.ConnectionPool], float | None]


class _Redirected:
    """What both clients share: a client for each node, and how they follow a slot that moved.

    A slot that is just moving (ASK, TRYAGAIN) is not followed: each node has half of a lock's keys,
    and the waiters listen to the old node. The call is sent again later.
    """

    def __init__(self, topology: Topology, timeout_of: TimeoutOf) -> None:
        self._topology = topology
        self._timeout_of = timeout_of
        self._clients: dict[Address, Any] = {}

    def close(self) -> None:
        """Close the clients of all nodes."""
        for client in list(self._clients.values()):
            client.close()

    def _client(self, address: Address) -> Any:
        client = self._clients.get(address)
        if client is None:
            client = self._clients.setdefault(address, self._new(self._topology.pool(address)))
        return client

    def _new(self, pool: redis.ConnectionPool) -> Any:
        raise NotImplementedError

    def _failed(self, address: Address, error: Exception) -> None:
        """Note what an error says about the topology."""
        answered = isinstance(error, ResponseError)
        if not answered or isinstance(error, ClusterDownError) or is_read_only(error):
            self._topology.suspect(address)


class ClusterClient(_Redirected):
    """Sends blocking calls, over one kept connection to each node in use."""

    def _new(self, pool: redis.ConnectionPool) -> BlockingClient:
        self._timeout_of(pool)
        return BlockingClient(pool)

    def call(self, slot: int, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        for _ in range(REDIRECTIONS):
            address = self._topology.address(slot, packed.until)
            try:
                return self._client(address).call(packed)
            except MovedError as error:
                self._topology.moved(slot, error, address, packed.until)
            except (RedisError, OSError) as error:
                self._failed(address, error)
                raise
        raise _unsettled(slot)

    def call_all(self, parts: Sequence[Part]) -> list[Any]:
        """Send calls, those to one node at once; return the replies. Raises as ``call`` does."""
        by_node: dict[Address, list[int]] = {}
        for number, (slot, _) in enumerate(parts):
            by_node.setdefault(self._topology.address(slot), []).append(number)
        replies: list[Any] = [None] * len(parts)
        for address, numbers in by_node.items():
            try:
                answers = self._client(address).call_all([parts[number][1] for number in numbers])
            except (RedisError, OSError) as error:
                self._failed(address, error)
                raise
            for number, answer in zip(numbers, answers, strict=True):
                replies[number] = answer
        for number, (slot, packed) in enumerate(parts):
            if isinstance(replies[number], MovedError):
                replies[number] = self.call(slot, packed)
        return _without_errors(replies)


class AsyncClusterClient(_Redirected):
    """Sends calls under asyncio, over one connection for each loop and node."""

    def _new(self, pool: redis.ConnectionPool) -> AsyncClient:
        return AsyncClient(lambda: asyncio_connection(pool), self._timeout_of(pool))

    async def call(self, slot: int, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        for _ in range(REDIRECTIONS):
            address = await self._topology.aaddress(slot)
            try:
                return await self._client(address).call(packed)
            except MovedError as error:
                await self._topology.amoved(slot, error, address)
            except (RedisError, OSError) as error:
                self._failed(address, error)
                raise
        raise _unsettled(slot)

    async def call_all(self, parts: Sequence[Part]) -> list[Any]:
        """Send calls concurrently; return the replies. Raises as ``call`` does."""
        asked = (self.call(slot, packed) for slot, packed in parts)
        return _without_errors(await asyncio.gather(*asked, return_exceptions=True))


def _without_errors(replies: Sequence[Any]) -> list[Any]:
    """Return the replies; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return list(replies)


def _unsettled(slot: int) -> RedisError:
    return redis.exceptions.ConnectionError(
        f"slot {slot} was redirected {REDIRECTIONS} times; the nodes disagree where it is"
    )
