"""Receives the grants of this process from the nodes of a cluster."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterable
from typing import Any

from redis.exceptions import MovedError, RedisError, ResponseError

from django_redis_lock.backends.clusters.topology import (
    SHARD_SLOTS,
    TAGS,
    Address,
    Topology,
    shard_of,
)
from django_redis_lock.support.threads import from_below
from django_redis_lock.transport.connections import leave_to_parent, new_connection
from django_redis_lock.transport.receiving import Liveness, ReceivingRegistry
from django_redis_lock.transport.redis_py import BROKEN, cluster_error, socket_of

_BROKEN = (*BROKEN, KeyError)
"""What reading can raise; ``KeyError`` comes from the selector if a socket was closed."""


class ClusterListener:
    """Listens on one connection to each node that has locks waited for.

    ``PUBLISH`` counts only receivers on its own node, and no receiver means that the waiter is
    dead. So the process has a channel for each shard, with the shard's hash tag, on the node that
    serves the shard. The first connection to a node subscribes to all shards of the node. Sharded
    channels are used if the server has them.

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
        address = self._topology.address(SHARD_SLOTS[shard])
        shards = [one for one, slot in enumerate(SHARD_SLOTS)
                  if self._topology.known(slot) == address]  # fmt: skip
        connection = new_connection(self._topology.pool(address))
        ear = _Ear(connection, address, shards)
        try:
            connection.connect()
            ear.subscribe("S" * self._sharded + "SUBSCRIBE", map(self._channel, shards))
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, MovedError):
                self._topology.moved(error.slot_id, error, address)
            elif isinstance(error, ResponseError):
                self._sharded = self._sharded and "unknown command" not in str(error).lower()
            elif isinstance(error, RedisError | OSError):
                self._topology.suspect(address)
            raise
        return ear

    def leave_to_parent(self) -> None:
        for ear in self._all():
            leave_to_parent(ear.connection)
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
                    selector.register(socket_of(ear.connection), selectors.EVENT_READ)
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
            while ear.connection.can_read(timeout=0):
                read = True
                ear.liveness.note_seen()
                self._take_message(ear, ear.connection.read_response(disable_decoding=True))
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
            lost = [one for one in ear.shards if self._channel(one).encode() == message[1]]
            self._topology.suspect(ear.address)
            self._forget(ear, lost)

    def _follow_shards(self) -> None:
        """Forget shards on nodes that no longer serve them."""
        for ear in self._all():
            gone = [
                shard
                for shard in ear.shards
                if self._topology.known(SHARD_SLOTS[shard]) not in (None, ear.address)
            ]
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
            ear.connection.disconnect()


class _Ear:
    """A connection to one node, subscribed to the channels of its shards."""

    def __init__(self, connection: Any, address: Address, shards: list[int]) -> None:
        self.connection = connection
        self.address = address
        self.shards = shards
        self.liveness = Liveness()
        self._subscriptions: list[tuple[str, str]] = []

    def subscribe(self, command: str, channels: Iterable[str]) -> None:
        """Subscribe, and wait for the confirmations. Raises ``RedisError`` and ``OSError``."""
        # One by one: a command may name only channels of one slot.
        self._subscriptions = [(command, channel) for channel in channels]
        pack = self.connection.pack_command
        packed = [part for one in self._subscriptions for part in pack(*one)]
        self.connection.send_packed_command(packed)
        try:
            for _ in self._subscriptions:
                self.connection.read_response(disable_decoding=True)
        except ResponseError as error:
            raise cluster_error(error) from None
        self.liveness.note_seen()

    def patience(self) -> float:
        """Return how many seconds of silence are normal. Raises ``OSError`` after a longer one."""
        return self.liveness.patience(
            lambda: self.connection.send_command(*self._subscriptions[0], check_health=False)
        )


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
