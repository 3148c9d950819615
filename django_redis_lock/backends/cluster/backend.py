"""Locks on a Redis Cluster: what ``RedisLockBackend`` becomes where LOCATION is a list of nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import merge
from typing import Any

import redis

from django_redis_lock.backends.cluster.clients import AsyncClusterClient, ClusterClient, Part
from django_redis_lock.backends.cluster.listener import ClusterListener
from django_redis_lock.backends.cluster.sharding import SHARD_SLOTS, SHARDS, TAGS, shard_of
from django_redis_lock.backends.cluster.topology import Topology
from django_redis_lock.backends.index import Index, read_page
from django_redis_lock.backends.redis.backend import RedisLockBackend, numbers
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import Steps
from django_redis_lock.protocol.waiting import Hub
from django_redis_lock.support.process import made_once
from django_redis_lock.transport.packing import Packing
from django_redis_lock.transport.polling import Polling


class RedisClusterLockBackend(RedisLockBackend):
    """Locks on the nodes of a cluster, each lock whole on one of them.

    Write ``RedisLockBackend`` in LOCKS; a list as LOCATION makes it this one.
    """

    topology: Topology
    hub: ClusterListener

    def _connect(self, polling: Polling) -> None:
        if self.wait != "queue":
            raise self._no_scheme(f"['OPTIONS']['WAIT'] is {self.wait!r}")
        if "{" in self.key_prefix or "}" in self.key_prefix:
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['KEY_PREFIX'] is {self.key_prefix!r}; braces would name "
                f"the slot of a cluster that a key belongs to, so leave them out."
            )
        assert self.location.urls
        self.topology = Topology(self.location.urls)
        self._packings = [Packing(self.key_prefix, tag, self.replicas) for tag in TAGS]
        self.hub = ClusterListener(self.topology, f"{self.key_prefix}-grant", self._give_back)
        self.supports_many = False  # they may be on several nodes

    def _no_scheme(self, what: str) -> InvalidLockBackend:
        return InvalidLockBackend(
            f"LOCKS[{self.alias!r}]{what}, but in a cluster waiters wait by 'queue' only."
        )

    def hub_for(self, wait: str | None) -> Hub:
        """Return where those wait who chose a waiting scheme. Raises ``InvalidLockBackend``."""
        if wait not in (None, "queue"):
            raise self._no_scheme(f" is asked for a lock with wait={wait!r}")
        return self.hub

    def freed(self, name: str) -> None:
        """Take in that this process has released a lock."""

    def close(self) -> None:
        """Let go of connections; the backend can be used again afterwards."""
        self.hub.close()
        self._close_clients()
        self.topology.close()

    @property
    def pool(self) -> redis.ConnectionPool:
        """The connections to one of the masters."""
        return self.pools()[0]

    def pools(self) -> list[redis.ConnectionPool]:
        """Return the connections to each master. Raises ``RedisError``."""
        return [self.topology.pool(address) for address in self.topology.masters()]

    def packing_at(self, pool: redis.ConnectionPool) -> Packing:
        """Return the keys of a shard that a master serves."""
        for shard, slot in enumerate(SHARD_SLOTS):
            address = self.topology.known(slot)
            if address is not None and self.topology.pool(address) is pool:
                return self._packings[shard]
        return self._packings[0]

    @made_once
    def _client(self) -> ClusterClient:  # type: ignore[override]
        return ClusterClient(self.topology, self._patience)

    @made_once
    def _async_client(self) -> AsyncClusterClient:  # type: ignore[override]
        return AsyncClusterClient(self.topology, self._patience)

    def together(self, name: str) -> Hashable:
        """Return the node of a lock, as far as it is known: its leases are renewed together."""
        return self.topology.known(SHARD_SLOTS[shard_of(name)])

    def post(self, call: Call) -> None:
        """Carry out a call whose reply nobody needs; it is waited for, to follow a moved slot."""
        self.call(call)

    async def apost(self, call: Call) -> None:
        """Carry out a call whose reply nobody needs, as ``post`` does."""
        await self.acall(call)

    def _carry_out(self, call: Call) -> Any:
        shard = _only_shard(call)
        if shard is not None:
            packed = self._packings[shard].pack(call)
            return numbers(self._client.call(SHARD_SLOTS[shard], packed))
        parts, join = self._split(call)
        return join(self._client.call_all(parts))

    async def _acarry_out(self, call: Call) -> Any:
        shard = _only_shard(call)
        if shard is not None:
            packed = self._packings[shard].pack(call)
            return numbers(await self._async_client.call(SHARD_SLOTS[shard], packed))
        parts, join = self._split(call)
        return join(await self._async_client.call_all(parts))

    def _split(self, call: Call) -> tuple[list[Part], Callable[[list[Any]], Any]]:
        """Return the part of a call for each shard, and what makes their answers one."""
        of_shards: dict[int, Call]
        match call:
            case calls.Renew():
                order = _by_shard(lease[0] for lease in call.leases)
                of_shards = {
                    shard: calls.Renew([call.leases[n] for n in numbers], at_least=call.at_least)
                    for shard, numbers in order.items()
                }
                join = _in_order(order)
            case calls.Inspect():
                order = _by_shard(call.names)
                of_shards = {
                    shard: calls.Inspect([call.names[n] for n in numbers])
                    for shard, numbers in order.items()
                }
                join = _inspected(order)
            case calls.NoteLosses():
                order = _by_shard(entry["name"] for entry in call.entries)
                of_shards = {
                    shard: calls.NoteLosses([call.entries[n] for n in numbers], call.cap)
                    for shard, numbers in order.items()
                }
                for part in of_shards.values():
                    part.first_sent_at = call.first_sent_at
                join = sum
            case calls.ReadHistory():
                of_shards = dict.fromkeys(range(SHARDS), call)
                join = _pages
            case _ReadIndexes():
                of_shards = {
                    page.shard: calls.ReadIndex(page.start, page.after, call.count)
                    for page in call.pages
                }
                join = list
            case _:
                raise TypeError(f"{type(call).__name__} is no call of many shards")
        sending: Callable[[], None] = call.sending
        parts: list[Part] = []
        for shard, part in of_shards.items():
            parts.append((SHARD_SLOTS[shard], self._packings[shard].pack(part, sending)))
            sending = _already_noted
        return parts, join

    def _new_index(self, pattern: str) -> _ShardedIndex:
        return _ShardedIndex(pattern)

    def _turn_page(self, index: Any) -> Steps[None]:
        # A page of one name would be filled for ever by one lock that is renewed again and again.
        size = max(2, 10 * self.page_size // SHARDS)
        pages = [page for page in index.shards if page.more]
        for page, answer in zip(pages, (yield from ask(_ReadIndexes(pages, size))), strict=True):
            page.add(read_page(answer), size)


class _Page(Index):
    def __init__(self, pattern: str, shard: int) -> None:
        super().__init__(pattern)
        self.shard = shard


class _ShardedIndex(Index):
    """The indexes of all shards, of which the pages are turned together."""

    def __init__(self, pattern: str) -> None:
        self.shards = [_Page(pattern, shard) for shard in range(SHARDS)]

    @property
    def more(self) -> bool:  # type: ignore[override]
        return any(page.more for page in self.shards)

    def latest(self) -> Iterator[tuple[str, float]]:
        parts = [page.latest() for page in self.shards]
        return merge(*parts, key=lambda item: (item[1], item[0]), reverse=True)


class _ReadIndexes(Call):
    """Read a page of the held locks of each of some shards."""

    __slots__ = ("count", "pages")

    def __init__(self, pages: list[_Page], count: int) -> None:
        super().__init__()
        self.pages = pages
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


def _by_shard(names: Iterable[str]) -> dict[int, list[int]]:
    """Return which of the names, by number, are in which shard."""
    found: dict[int, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(shard_of(name), []).append(number)
    return found


def _in_order(order: dict[int, list[int]]) -> Callable[[list[Any]], Any]:
    def join(answers: list[Any]) -> list[Any]:
        whole = {
            number: item
            for numbers, answer in zip(order.values(), answers, strict=True)
            for number, item in zip(numbers, answer, strict=True)
        }
        return [whole[number] for number in sorted(whole)]

    return join


def _inspected(order: dict[int, list[int]]) -> Callable[[list[Any]], Any]:
    def join(answers: list[Any]) -> list[Any]:
        threes = [list(zip(*[iter(answer[1:])] * 3, strict=True)) for answer in answers]
        found = _in_order(order)(threes)
        now = max((answer[0] for answer in answers), default=0)
        return [now, *[value for three in found for value in three]]

    return join


def _pages(answers: list[Any]) -> list[Any]:
    return [page for answer in answers for page in answer]


def _already_noted() -> None:
    """Stand in for noting once more that a call goes out."""
