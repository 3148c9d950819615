"""Receives the grants of this process from the nodes of a cluster."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterable
from typing import Any

from redis.exceptions import MovedError, RedisError, ResponseError

from django_redis_lock.backends.clusters.topology import SHARDS, TAGS, Address, Topology, shard_of
from django_redis_lock.support.threads import from_below
from django_redis_lock.transport.clients import NOTHING
from django_redis_lock.transport.connections import leave_to_parent, new_connection
from django_redis_lock.transport.receiving import Listening, ReceivingRegistry
from django_redis_lock.transport.redis_py import BROKEN, socket_of

_BROKEN = (*BROKEN, KeyError)  # of which the last is the selector's for a socket that was closed


class ClusterListener:
    """Listens on one connection to each node that has locks waited for.

    ``PUBLISH`` counts only receivers on its own node, and no receiver means that the waiter is
    dead. So the process has a channel for each shard, sharded if the server has such, on the node
    that serves it. The first connection to a node subscribes to all shards of the node.

    After a shard has moved, by resharding or a failover, the listener subscribes again and the
    first waiters ask for their locks. A message may come from a node that has just lost its shard.
    So its registry has to be ``confirming``.
    """

    registry: ReceivingRegistry

    def __init__(self, topology: Topology, prefix: str) -> None:
        self._topology = topology
        self._prefix = prefix
        topology.changed = self._follow_shards

    def reset(self) -> None:
        self._ears: dict[int, _Ear] = {}  # by shard
        self._sharded = True  # until a server does not know such channels
        self._waker = _Waker()

    @property
    def kind(self) -> str:
        """The letter for a process that receives so; see ``common.lua``."""
        return "s" if self._sharded else "c"

    def _channel(self, shard: int) -> str:
        return f"{self._prefix}-grant:{{{TAGS[shard]}}}:{self.registry.waits_in('')}"

    def receives(self, name: str) -> bool:
        return shard_of(name) in self._ears

    def _all(self) -> list[_Ear]:
        return list(dict.fromkeys(list(self._ears.values())))

    def connect(self, name: str) -> None:
        ear = self._open(shard_of(name))
        with self.registry.mutex:
            before = {self._ears[one] for one in ear.shards if one in self._ears}
            self._ears.update(dict.fromkeys(ear.shards, ear))
        self._waker.ring()  # the leader has to read from the new connection too
        for old in before:
            self._forget(old, ())  # what it had not read yet is lost

    def _open(self, shard: int) -> _Ear:
        """Connect to the node of a shard, and subscribe to all shards of the node.

        Its caller tries again after an error: it may have shown where the shard is now, or that the
        server has no sharded channels.
        """
        address = self._topology.address(shard)
        shards = [one for one in range(SHARDS) if self._topology.known(one) == address]
        channels = {one: self._channel(one) for one in shards}
        command = "S" * self._sharded + "SUBSCRIBE"
        try:
            return _Ear(self._topology.pool(address), address, command, channels)
        except MovedError as error:
            self._topology.moved(error, address)
            raise
        except ResponseError as error:
            self._sharded = self._sharded and "unknown command" not in str(error).lower()
            raise
        except (RedisError, OSError):
            self._topology.suspect(address)
            raise

    def leave_to_parent(self) -> None:
        for ear in self._all():
            leave_to_parent(ear.origin)
        self._waker.ring()  # wakes a selecting thread of this child; it does no harm to the parent

    def close(self) -> None:
        for ear in self._all():
            self._forget(ear, ear.shards)

    def receive(self, seconds: float) -> bool:
        ears = self._all()
        if not ears:
            return False
        if sum(self._read_ready(ear) for ear in ears):
            return True
        waker = self._waker
        with selectors.DefaultSelector() as selector:
            selector.register(waker, selectors.EVENT_READ)
            for ear in ears:
                try:
                    seconds = min(seconds, ear.patience())
                    selector.register(socket_of(ear.origin), selectors.EVENT_READ)
                except from_below(*_BROKEN):
                    self._forget(ear, ear.shards)
                    return True
            selector.select(seconds)
            waker.hush()
        return True

    def _read_ready(self, ear: _Ear) -> bool:
        """Read what has arrived; return whether there was anything."""
        read = False
        try:
            while (message := ear.receive_arrived()) is not NOTHING:
                read = True
                self._take_message(ear, message)
        except BaseException as error:
            self._forget(ear, ear.shards)  # it may have been interrupted in the middle of a message
            if not isinstance(error, from_below(*_BROKEN)):
                raise
            return True
        return read

    def _take_message(self, ear: _Ear, message: Any) -> None:
        kind = message[0]
        if kind in (b"message", b"smessage"):
            self.registry.take_in(message[2])
        elif kind == b"sunsubscribe" and message[1] is not None:
            self._topology.suspect(ear.address)
            self._forget(ear, [one for one in ear.shards if ear.shards[one].encode() == message[1]])

    def _follow_shards(self) -> None:
        """Forget shards on nodes that no longer serve them."""
        for ear in self._all():
            known = {shard: self._topology.known(shard) for shard in ear.shards}
            gone = [shard for shard, node in known.items() if node not in (None, ear.address)]
            if gone:
                self._forget(ear, gone)

    def _forget(self, ear: _Ear, shards: Iterable[int]) -> None:
        """Note that a connection no longer serves some shards."""
        with self.registry.mutex:
            gone = {shard for shard in shards if self._ears.get(shard) is ear}
            for shard in gone:
                del self._ears[shard]
            unused = ear not in self._ears.values()
        self._waker.ring()
        self.registry.lost()
        if unused:
            ear.close()


class _Ear(Listening):
    """A connection to one node, subscribed to the channels of its shards."""

    def __init__(self, pool: Any, address: Address, command: str, shards: dict[int, str]) -> None:
        # One by one: a command may name only channels of one slot.
        super().__init__(new_connection(pool), [(command, channel) for channel in shards.values()])
        socket_of(self.origin).setblocking(False)
        self.address = address
        self.shards = shards


class _Waker:
    """Wakes a selecting thread, from any thread."""

    def __init__(self) -> None:
        # gevent and eventlet leave non-blocking sockets alone, but not pipes.
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    def __del__(self) -> None:
        for end in (self._near, self._far):
            end.close()

    def fileno(self) -> int:
        return self._near.fileno()

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of rings
            self._far.send(b"!")

    def hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._near.recv(4096)
