"""A Redis Cluster, on which each lock is whole on one node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

import redis
from redis.exceptions import ClusterDownError, MovedError, RedisError, ResponseError

from django_redis_lock.backends.clusters.listener import ClusterListener
from django_redis_lock.backends.clusters.topology import SHARDS, TAGS, Address, Topology, shard_of
from django_redis_lock.backends.settings import check_replicas
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import calls
from django_redis_lock.protocol.calls import Call
from django_redis_lock.protocol.waiting import WaiterRegistry
from django_redis_lock.support.threads import from_below
from django_redis_lock.transport.async_client import AsyncClient
from django_redis_lock.transport.clients import BlockingClient, is_read_only
from django_redis_lock.transport.location import Location
from django_redis_lock.transport.packing import Packed, Packing, Replicas, numbers
from django_redis_lock.transport.parking import OutboxCall
from django_redis_lock.transport.receiving import ReceivingRegistry

Client = TypeVar("Client", BlockingClient, AsyncClient)
Part = tuple[int, Packed]  # a shard, and a call on keys of that shard
Join = Callable[[list[Any]], Any]  # what makes the answer to a call of the answers to its parts


class Cluster:
    def __init__(self, location: Location, key_prefix: str, replicas: Replicas | None) -> None:
        self.location = location
        self.replicas = replicas
        if "{" in key_prefix or "}" in key_prefix:
            raise InvalidLockBackend(
                f"LOCKS[{location.using!r}]['KEY_PREFIX'] is {key_prefix!r}: remove the braces, "
                f"which would choose the slot of every key in the cluster."
            )
        self.topology = Topology(location.urls or [])
        check_replicas(replicas, self.topology.arguments, location.using)
        self._packings = [Packing(key_prefix, tag, replicas) for tag in TAGS]
        self._key_prefix = key_prefix
        self._clients: dict[tuple[type[Any], Address], Any] = {}

    def make_registry(self, scheme: str, give_back: calls.GiveBack) -> WaiterRegistry:
        self.check_scheme(scheme)
        listener = ClusterListener(self.topology, self._key_prefix)
        return ReceivingRegistry(listener, give_back, confirming=True)

    def check_scheme(self, scheme: str) -> None:
        if scheme != "queue":
            raise InvalidLockBackend(
                f"LOCKS[{self.location.using!r}] is a cluster, where WAIT and wait= must be "
                f"'queue', not {scheme!r}."
            )

    def open(self) -> None:
        """Do nothing: which clients are needed shows when the nodes have been asked."""

    def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    @property
    def pool(self) -> redis.ConnectionPool:
        return self.pools()[0]

    def pools(self) -> list[redis.ConnectionPool]:
        return [self.topology.pool(address) for address in self.topology.masters()]

    def renewal_group(self, name: str) -> Hashable:
        """Return the node of a lock, ``None`` while it is not known."""
        return self.topology.known(shard_of(name))

    # These also wait for the reply to a claim, to follow a slot that moved.

    def call(self, call: Call) -> Any:
        parts, join = self._split(call)
        return join([self._send(*parts[0])] if len(parts) == 1 else self._send_all(parts))

    async def acall(self, call: Call) -> Any:
        parts, join = self._split(call)
        if len(parts) == 1:
            return join([await self._asend(*parts[0])])
        sent = (self._asend(*part) for part in parts)
        return join(_without_errors(await asyncio.gather(*sent, return_exceptions=True)))

    def _split(self, call: Call) -> tuple[list[Part], Join]:
        """Return a part of the call for each shard, and what joins their answers."""
        if name := call.lock_name:
            shard = shard_of(name)
            return [(shard, self._packings[shard].pack(call))], itemgetter(0)
        of_shards, join = _calls_of_shards(call)
        # All answers count from the first sending of a part: one that is redirected is sent later.
        sending = cache(call.sending)
        pack = {shard: self._packings[shard].pack for shard in of_shards}
        return [(shard, pack[shard](part, sending)) for shard, part in of_shards.items()], join

    # A slot that is just moving (ASK, TRYAGAIN) is not followed: each node has half of a lock's
    # keys, and the waiters listen to the old node. The call is sent again later.

    def _send(self, shard: int, packed: Packed) -> Any:
        for _ in range(self.topology.REDIRECTIONS):
            address = self.topology.address(shard, packed.until)
            try:
                return numbers(self._client(BlockingClient, address).call(packed))
            except from_below(RedisError, OSError) as error:
                self._failed(address, error)
        raise self.topology.disagreement(shard)

    def _send_all(self, parts: Sequence[Part]) -> list[Any]:
        by_node: dict[Address, list[int]] = {}
        for number, (shard, packed) in enumerate(parts):
            by_node.setdefault(self.topology.address(shard, packed.until), []).append(number)
        replies: dict[int, Any] = {}
        for address, own in by_node.items():
            try:
                client = self._client(BlockingClient, address)
                answers = client.call_all([parts[number][1] for number in own])
            except from_below(RedisError, OSError) as error:
                self._failed(address, error)
                raise
            replies.update(zip(own, answers, strict=True))
        for number, part in enumerate(parts):
            if isinstance(replies[number], MovedError):
                replies[number] = self._send(*part)
        return _without_errors([replies[number] for number in range(len(parts))])

    async def _asend(self, shard: int, packed: Packed) -> Any:
        for _ in range(self.topology.REDIRECTIONS):
            address = await self.topology.aaddress(shard)
            try:
                return numbers(await self._client(AsyncClient, address).call(packed))
            except (RedisError, OSError) as error:
                self._failed(address, error)
        raise self.topology.disagreement(shard)

    def _client(self, kind: type[Client], address: Address) -> Client:
        key = kind, address
        found: Client | None = self._clients.get(key)
        return found or self._clients.setdefault(key, kind(self.topology.pool(address)))

    def _failed(self, address: Address, error: Exception) -> None:
        """Follow a redirection. Raises any other error; one may say that the node is no master."""
        if isinstance(error, MovedError):
            self.topology.moved(error, address)
            return
        answered = isinstance(error, ResponseError)
        if not answered or isinstance(error, ClusterDownError) or is_read_only(error):
            self.topology.suspect(address)
        raise error


def _without_errors(replies: list[Any]) -> list[Any]:
    """Return the replies; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies


def _calls_of_shards(call: Call) -> tuple[Mapping[int, Call], Join]:
    every = range(SHARDS)
    match call:
        case calls.Renew(leases=leases):
            names = [name for name, _, _ in leases]
            parts = _by_shard(names, leases, lambda own: replace(call, leases=own))
            return parts, lambda answers: _in_order(names, parts, answers)
        case calls.Heartbeat(names=last):
            parts = _by_shard(last, last.items(), lambda own: replace(call, names=dict(own)))
            return parts, _join_heartbeats
        case calls.Inspect(names=names):
            parts = _by_shard(names, names, lambda own: replace(call, names=own))
            return parts, lambda answers: [
                max((now for now, *_ in answers), default=0),
                *_in_order(names, parts, [holders for _, *holders in answers], each=3),
            ]
        case calls.ReadHistory() | calls.ReadLimits():
            return dict.fromkeys(every, call), lambda answers: [*chain(*answers)]
        case OutboxCall():
            return dict.fromkeys(every, call), call.join
        case calls.ReadPages(parts=parts):
            unread = {shard: part for shard, part in enumerate(parts) if part is not None}
            return unread, lambda pages: [*map(dict(zip(unread, pages, strict=True)).get, every)]
    raise TypeError(f"{type(call).__name__} can't be split over shards")


def _join_heartbeats(answers: list[Any]) -> list[Any]:
    statuses = [[*map(int, answer[0].split())] for answer in answers]
    now_ms = min(now for now, _ in statuses)
    left_ms = min((left for _, left in statuses if left >= 0), default=-1)
    lost = b"\n".join(answer[1] for answer in answers if answer[1])
    return [b"%d %d" % (now_ms, left_ms), lost, *chain(*(each[2:] for each in answers))]


def _by_shard(
    names: Iterable[str], items: Iterable[Any], make: Callable[[list[Any]], Call]
) -> dict[int, Call]:
    """Return a call for each shard, made of the items whose names are there."""
    found: dict[int, list[Any]] = {}
    for name, item in zip(names, items, strict=True):
        found.setdefault(shard_of(name), []).append(item)
    return {shard: make(own) for shard, own in found.items()}


def _in_order(
    names: Iterable[str], shards: Iterable[int], answers: list[Any], each: int = 1
) -> list[Any]:
    """Return the values of all answers, of which ``each`` belong to one name, in order of names."""
    rest = dict(zip(shards, map(iter, answers), strict=True))
    return [value for name in names for value in islice(rest[shard_of(name)], each)]
