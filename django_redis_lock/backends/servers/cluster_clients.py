"""Sends calls to the nodes of a cluster, and follows slots that move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
from redis.exceptions import ClusterDownError, MovedError, RedisError, ResponseError

from django_redis_lock.backends.servers.topology import Address, Topology
from django_redis_lock.transport.async_client import AsyncClient
from django_redis_lock.transport.clients import BlockingClient, is_read_only
from django_redis_lock.transport.connections import asyncio_connection
from django_redis_lock.transport.packing import Packed

REDIRECTIONS = 5
"""How often a call is sent on before it counts as unanswered."""

Part = tuple[int, Packed]
"""A slot and a call on keys of that slot."""


class _Followed:
    """What both clients do with the answer of a node: a slot that has moved is followed.

    A slot that is being moved (ASK, TRYAGAIN) is not: half of a lock's keys are on either side, and
    its waiters listen to the node that gives the slot away. The call is sent again later.
    """

    def __init__(
        self, topology: Topology, patience: Callable[[redis.ConnectionPool], float | None]
    ) -> None:
        self._topology = topology
        self._patience = patience

    def _failed(self, address: Address, error: Exception) -> None:
        """Take in what an error says about the topology."""
        answered = isinstance(error, ResponseError)
        if not answered or isinstance(error, ClusterDownError) or is_read_only(error):
            self._topology.suspect(address)

    def _by_node(self, parts: Sequence[Part]) -> dict[Address, list[int]]:
        """Return which parts, by number, go to which node."""
        found: dict[Address, list[int]] = {}
        for number, (slot, _) in enumerate(parts):
            found.setdefault(self._topology.address(slot), []).append(number)
        return found


class ClusterClient(_Followed):
    """Sends calls with blocking, one connection kept to each node that is in use."""

    def __init__(
        self, topology: Topology, patience: Callable[[redis.ConnectionPool], float | None]
    ) -> None:
        super().__init__(topology, patience)
        self._clients: dict[Address, BlockingClient] = {}

    def close(self) -> None:
        """Give the connections back to their pools."""
        for client in list(self._clients.values()):
            client.close()

    def call(self, slot: int, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        for _ in range(REDIRECTIONS):
            address = self._topology.address(slot)
            try:
                return self._client(address).call(packed)
            except MovedError as error:
                self._topology.moved(slot, error, address)
            except (RedisError, OSError) as error:
                self._failed(address, error)
                raise
        raise _lost_its_way(slot)

    def call_all(self, parts: Sequence[Part]) -> list[Any]:
        """Send calls, in one go for each node; return their replies. Raises as ``call`` does."""
        replies: list[Any] = [None] * len(parts)
        for address, numbers in self._by_node(parts).items():
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
        return list(_sound(replies))

    def _client(self, address: Address) -> BlockingClient:
        client = self._clients.get(address)
        if client is None:
            pool = self._topology.pool(address)
            self._patience(pool)
            client = self._clients.setdefault(address, BlockingClient(pool))
        return client


class AsyncClusterClient(_Followed):
    """Sends calls under asyncio, over one connection for each loop and node."""

    def __init__(
        self, topology: Topology, patience: Callable[[redis.ConnectionPool], float | None]
    ) -> None:
        super().__init__(topology, patience)
        self._clients: dict[Address, AsyncClient] = {}

    def close(self) -> None:
        """Close the connections of all loops."""
        for client in list(self._clients.values()):
            client.close()

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
        raise _lost_its_way(slot)

    async def call_all(self, parts: Sequence[Part]) -> list[Any]:
        """Send calls, all at once; return their replies. Raises as ``call`` does."""
        replies = await asyncio.gather(
            *(self.call(slot, packed) for slot, packed in parts), return_exceptions=True
        )
        return list(_sound(replies))

    def _client(self, address: Address) -> AsyncClient:
        client = self._clients.get(address)
        if client is None:
            pool = self._topology.pool(address)
            client = AsyncClient(lambda: asyncio_connection(pool), self._patience(pool))
            client = self._clients.setdefault(address, client)
        return client


def _sound(replies: Sequence[Any]) -> Iterator[Any]:
    """Yield the replies; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
        yield reply


def _lost_its_way(slot: int) -> RedisError:
    return redis.exceptions.ConnectionError(
        f"slot {slot} was sent on {REDIRECTIONS} times; the nodes don't agree where it is"
    )
