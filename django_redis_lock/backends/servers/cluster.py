"""A Redis Cluster, on which each lock is whole on one node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from heapq import merge
from itertools import chain
from typing import Any

import redis

from django_redis_lock.backends.index import Index, read_page
from django_redis_lock.backends.servers.base import Servers, numbers
from django_redis_lock.backends.servers.cluster_clients import (
    AsyncClusterClient,
    ClusterClient,
    Part,
)
from django_redis_lock.backends.servers.cluster_listener import ClusterListener
from django_redis_lock.backends.servers.sharding import SHARD_SLOTS, SHARDS, TAGS, shard_of
from django_redis_lock.backends.servers.topology import Topology
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.support.process import made_once
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packing, Replicas
from django_redis_lock.transport.receiving import ReceivingHub

Order = dict[int, list[int]]
"""The positions of items in a call, by the shard of each item."""


class Cluster(Servers):
    """The nodes of a cluster."""

    def __init__(
        self,
        location: Location,
        key_prefix: str,
        replicas: Replicas | None,
        give_back: Callable[[str, str, float], object],
    ) -> None:
        super().__init__(location, replicas)
        if "{" in key_prefix or "}" in key_prefix:
            raise InvalidLockBackend(
                f"LOCKS[{location.using!r}]['KEY_PREFIX'] is {key_prefix!r}; braces would choose "
                f"the slot of a key in the cluster, so leave them out."
            )
        self.topology = Topology(location.urls or [])
        self._packings = [Packing(key_prefix, tag, replicas) for tag in TAGS]
        listener = ClusterListener(self.topology, f"{key_prefix}-grant")
        self._hub = ReceivingHub(listener, give_back, confirming=True)

    def hub(self, scheme: str) -> Hub:
        """Return the hub of the waiters. Raises ``InvalidLockBackend`` for other schemes."""
        if scheme != "queue":
            raise InvalidLockBackend(
                f"LOCKS[{self.location.using!r}] is a cluster, where WAIT, or wait= of a lock, "
                f"can only be 'queue', not {scheme!r}."
            )
        return self._hub

    def freed(self, name: str) -> None:
        """Do nothing: no waiter of a cluster polls."""

    def close(self) -> None:
        self._hub.close()
        super().close()
        self.topology.close()

    @property
    def pool(self) -> redis.ConnectionPool:
        """The connections to one of the masters."""
        return self.pools()[0]

    def pools(self) -> list[redis.ConnectionPool]:
        return [self.topology.pool(address) for address in self.topology.masters()]

    def packing_at(self, pool: redis.ConnectionPool) -> Packing:
        """Return the keys of a shard that a master serves."""
        for shard, slot in enumerate(SHARD_SLOTS):
            address = self.topology.known(slot)
            if address is not None and self.topology.pool(address) is pool:
                return self._packings[shard]
        return self._packings[0]

    def together(self, name: str) -> Hashable:
        """Return the node of a lock as far as it is known: its leases are renewed together."""
        return self.topology.known(SHARD_SLOTS[shard_of(name)])

    @made_once
    def client(self) -> ClusterClient:
        return ClusterClient(self.topology, self.timeout_of)

    @made_once
    def async_client(self) -> AsyncClusterClient:
        return AsyncClusterClient(self.topology, self.timeout_of)

    def call(self, call: Call) -> Any:
        shard = _only_shard(call)
        if shard is not None:
            packed = self._packings[shard].pack(call)
            return numbers(self.client.call(SHARD_SLOTS[shard], packed))
        parts, join = self._split(call)
        return join(self.client.call_all(parts))

    async def acall(self, call: Call) -> Any:
        shard = _only_shard(call)
        if shard is not None:
            packed = self._packings[shard].pack(call)
            return numbers(await self.async_client.call(SHARD_SLOTS[shard], packed))
        parts, join = self._split(call)
        return join(await self.async_client.call_all(parts))

    def post(self, call: Call) -> None:
        """Carry out a call whose reply is not needed; it waits, to follow a slot that moved."""
        self.call(call)

    async def apost(self, call: Call) -> None:
        await self.acall(call)

    def read_index(self, pattern: str, size: int) -> Steps[Index]:
        index = _ShardedIndex(pattern)
        # With pages of one name, a lock that is renewed again and again would fill them for ever.
        size = max(2, size // SHARDS)
        while unread := {n: shard for n, shard in index.shards.items() if shard.more}:
            answers = yield from ask(_ReadIndexes(unread, size))
            for shard, answer in zip(unread.values(), answers, strict=True):
                shard.add(read_page(answer), size)
        return index

    def _split(self, call: Call) -> tuple[list[Part], Callable[[list[Any]], Any]]:
        """Return a part of the call for each shard, and what joins their answers."""
        of_shards, join = _calls_of_shards(call)
        # All answers count from the first sending of a part: one that is redirected is sent later.
        sending = cache(call.sending)
        parts = [
            (SHARD_SLOTS[shard], self._packings[shard].pack(part, sending))
            for shard, part in of_shards.items()
        ]
        return parts, join


class _ShardedIndex(Index):
    """The indexes of all shards, which are read together."""

    def __init__(self, pattern: str) -> None:
        self.shards = {number: Index(pattern) for number in range(SHARDS)}

    def latest(self) -> Iterator[tuple[str, float]]:
        parts = [shard.latest() for shard in self.shards.values()]
        return merge(*parts, key=lambda item: (item[1], item[0]), reverse=True)


class _ReadIndexes(Call):
    """Read a page of the held locks of each of some shards."""

    __slots__ = ("count", "shards")

    def __init__(self, shards: dict[int, Index], count: int) -> None:
        super().__init__()
        self.shards = shards
        self.count = count


def _only_shard(call: Call) -> int | None:
    """Return the shard of all keys of a call, ``None`` where there may be several."""
    match call:
        case calls.Acquire() | calls.TakeOver():
            return shard_of(call.request.name)
        case calls.Release() | calls.ForceRelease() | calls.ReadQueue():
            return shard_of(call.name)
        case calls.ReadHistory():
            return shard_of(call.name) if call.name else None
        case calls.Renew() if len(call.leases) == 1:
            return shard_of(call.leases[0][0])
        case calls.Inspect() if len(call.names) == 1:
            return shard_of(call.names[0])
    return None


def _calls_of_shards(call: Call) -> tuple[dict[int, Call], Callable[[list[Any]], Any]]:
    order: Order
    match call:
        case calls.Renew(leases=leases):
            order = _by_shard(lease[0] for lease in leases)
            return {
                shard: calls.Renew([leases[n] for n in own], at_least=call.at_least)
                for shard, own in order.items()
            }, lambda answers: _in_order(order, answers)
        case calls.Inspect(names=names):
            order = _by_shard(names)
            return {
                shard: calls.Inspect([names[n] for n in own]) for shard, own in order.items()
            }, lambda answers: _inspected(order, answers)
        case calls.ReadHistory():
            return dict.fromkeys(range(SHARDS), call), lambda answers: [*chain(*answers)]
        case _ReadIndexes(shards=shards):
            return {
                number: calls.ReadIndex(shard.start, shard.after, call.count)
                for number, shard in shards.items()
            }, list
    raise TypeError(f"{type(call).__name__} can't be split over shards")


def _by_shard(names: Iterable[str]) -> Order:
    found: Order = {}
    for number, name in enumerate(names):
        found.setdefault(shard_of(name), []).append(number)
    return found


def _in_order(order: Order, answers: list[Any]) -> list[Any]:
    whole = {
        number: item
        for own, answer in zip(order.values(), answers, strict=True)
        for number, item in zip(own, answer, strict=True)
    }
    return [whole[number] for number in sorted(whole)]


def _inspected(order: Order, answers: list[Any]) -> list[Any]:
    threes = [list(zip(*[iter(answer[1:])] * 3, strict=True)) for answer in answers]
    now = max((answer[0] for answer in answers), default=0)
    return [now, *[value for three in _in_order(order, threes) for value in three]]
