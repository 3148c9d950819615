"""Which shard of a cluster holds a lock, and which node serves the shard.

A script needs all keys of a lock on one node, and many locks share an index, a fence and an audit.
So each name belongs to one of a fixed number of shards, all of whose keys have one hash tag. These
must never change: programs that disagree about them do not exclude each other.
"""

from __future__ import annotations

import math
import threading
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import redis
from redis.crc import key_slot
from redis.exceptions import MovedError, RedisError

from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.support.threads import InThread
from django_redis_lock.transport.connections import DEFAULTS, new_connection
from django_redis_lock.transport.redis_py import parse_url

Address = tuple[str, int]

SHARDS = 64  # enough to give each of up to 64 masters a share; few enough to list
SLOTS = 16384


TAGS = tuple(
    next(tag for tag in map(str, count()) if key_slot(tag.encode()) * SHARDS // SLOTS == shard)
    for shard in range(SHARDS)
)
"""The hash tag of each shard: the smallest number whose slot is in the shard's range.

The ranges have one length, so nodes that share the slots evenly share the locks evenly, too.
"""
SHARD_SLOTS = tuple(key_slot(tag.encode()) for tag in TAGS)


def shard_of(name: str) -> int:
    """Return the shard of a lock: the CRC16 of its name in UTF-8, modulo the number of shards."""
    return crc_hqx(name.encode(), 0) % SHARDS


class Topology:
    """The masters that serve the slots of the shards, and a pool of connections to each node.

    It reads the slots in a thread that no signal handler interrupts, which all callers share.
    """

    REDIRECTIONS = 5  # how often a call is redirected before it counts as unanswered

    def __init__(self, urls: Sequence[str]) -> None:
        parsed = [parse_url(url) for url in urls]
        # Of the connections: all nodes have the same user, password and options.
        self.arguments: dict[str, Any] = {**DEFAULTS, **parsed[0], "protocol": 2}
        self._seeds = [(one.get("host", "localhost"), one.get("port", 6379)) for one in parsed]
        self.changed: Callable[[], object] = lambda: None  # called where a change was noticed
        self._pools: dict[Address, redis.ConnectionPool] = {}
        self._masters: dict[int, Address] = {}  # by slot
        self._nodes: list[Address] = []
        self._stale = True
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may call while its thread has it
        self._reading: InThread[None] | None = None

    def pool(self, address: Address) -> redis.ConnectionPool:
        if address not in self._pools:
            where = {"host": address[0], "port": address[1]}
            self._pools.setdefault(address, redis.ConnectionPool(**{**self.arguments, **where}))
        return self._pools[address]

    def known(self, shard: int) -> Address | None:
        """Return the master of a shard if it is known, without a round trip."""
        return self._masters.get(SHARD_SLOTS[shard])

    def address(self, shard: int, until: float = math.inf) -> Address:
        """Return the master of a shard. Raises ``RedisError``, ``TimeoutError`` at ``until``."""
        if self._stale or self.known(shard) is None:
            self._read().result(until)
        return self._read_address(shard)

    async def aaddress(self, shard: int) -> Address:
        if self._stale or self.known(shard) is None:
            await self._read().aresult()
        return self._read_address(shard)

    def _read_address(self, shard: int) -> Address:
        address = self.known(shard)
        if address is None:
            raise redis.exceptions.ClusterDownError(f"no node serves slot {SHARD_SLOTS[shard]}")
        return address

    def masters(self) -> list[Address]:
        """Return all masters that serve shards. Raises as ``address`` does."""
        if self._stale:
            self._read().result()
        return sorted(set(self._masters.values()))

    def suspect(self, address: Address) -> None:
        """Note that a node did not answer: the next call asks the others who serves its slots."""
        self._nodes = [node for node in self._nodes if node != address]
        self._stale = True

    def moved(self, error: MovedError, by: Address) -> None:
        """Follow a redirection to another node, and read in the background what else moved."""
        to = error.host or by[0], error.port
        if self._masters.get(error.slot_id) != to:
            self._masters[error.slot_id] = to
            self._nodes.insert(0, to)
            self._read()

    def disagreement(self, shard: int) -> RedisError:
        slot, times = SHARD_SLOTS[shard], self.REDIRECTIONS
        text = f"slot {slot} was redirected {times} times, as the nodes disagree where it is"
        return redis.exceptions.ConnectionError(text)

    def _read(self) -> InThread[None]:
        """Read who serves the slots, in a thread; all callers meanwhile share the outcome."""
        with self._mutex:
            if self._reading is None or self._reading.done:
                self._reading = InThread(self._read_now)
            return self._reading

    def _read_now(self) -> None:
        try:
            nodes = list(dict.fromkeys([*self._nodes, *self._seeds]))
            self._masters, self._nodes = self._ask(nodes)
        except BaseException:
            self._stale = True
            raise
        self._stale = False
        self.changed()

    def _ask(self, nodes: Sequence[Address]) -> tuple[dict[int, Address], list[Address]]:
        """Ask nodes until one answers; return the masters of the shards' slots, and all nodes."""
        why: Exception | None = None
        for node in nodes:
            connection = new_connection(self.pool(node))
            try:
                connection.connect()
                connection.send_command("CLUSTER", "SLOTS")
                ranges = connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                why = error
                continue
            finally:
                connection.disconnect()
            masters: dict[int, Address] = {}
            found: list[Address] = []
            for first, last, *serving in ranges:
                # A node whose host the others do not know has that of the node that was asked.
                addresses = [
                    (node[0] if host in (b"", b"?", None) else host.decode(), port)
                    for host, port, *_ in serving
                ]
                found += addresses
                masters |= {slot: addresses[0] for slot in SHARD_SLOTS if first <= slot <= last}
            if masters:
                return masters, list(dict.fromkeys(found))
        raise redis.exceptions.ConnectionError(
            f"none of {len(nodes)} nodes reports which slots it serves: {why or 'none'}; "
            f"for a server without cluster mode, set LOCATION to its URL, without a list"
        )
