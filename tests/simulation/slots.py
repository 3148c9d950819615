"""A cluster of virtual servers, whose slots move from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from tests.simulation.network import Network, Site
from tests.simulation.server import Data, Server

SHARDS = 4
"""Fewer than the 64 of a real cluster, so that a process subscribes to fewer channels."""
SLOTS = 16384
_KEYLESS = frozenset({b"EVALSHA", b"EVAL", b"TIME", b"INFO", b"PUBLISH", b"SPUBLISH"})
_OF_MANY_KEYS = frozenset({b"EXISTS", b"DEL"})


class Slots:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.owner: dict[int, Node] = {}
        """The nodes of the slots that have moved."""
        self.moving: dict[int, Node] = {}
        """Where the slots go that are just moving."""

    def node_of(self, slot: int) -> Node:
        return self.owner.get(slot) or self.nodes[slot * len(self.nodes) // SLOTS]

    def answer(self) -> list[Any]:
        """Return the answer to CLUSTER SLOTS, a range for each run of slots on one node."""
        ranges: list[Any] = []
        bounds = {number * SLOTS // len(self.nodes) for number in range(len(self.nodes))}
        bounds |= {slot + step for slot in self.owner for step in (0, 1)}
        starts = sorted(bounds)
        for start, end in zip(starts, [*starts[1:], SLOTS], strict=True):
            host, port = self.node_of(start).address
            ranges.append([start, end - 1, [host.encode(), port]])
        return ranges


class Node(Site):
    def __init__(self, network: Network, name: str, executed: Any, slots: Slots) -> None:
        self.slots = slots
        self.address = (f"{name}.simulated", 6379)
        super().__init__(network, name, executed)
        slots.nodes.append(self)

    def _start(self) -> Server:
        server = super()._start()
        self._in_script = False
        carry_out = server.carry_out

        def carry_out_here(words: Sequence[bytes]) -> Any:
            """Refuse a script what is not here any more while its slot moves, as a node does."""
            keyed = self._in_script and self.slots.moving and words[0] not in _KEYLESS
            keys = words[1:] if words[0] in _OF_MANY_KEYS else words[1:2]
            if keyed and any(map(self._has_left, keys)):
                raise ResponseError("Script attempted to access a non local key in a cluster node")
            return carry_out(words)

        server.carry_out = carry_out_here  # type: ignore[method-assign]
        return server

    def _has_left(self, key: bytes) -> bool:
        """Whether a key is not here, and may be at the node where its slot goes."""
        return key_slot(key) in self.slots.moving and not self.server.exists(key)

    def execute(self, words: Sequence[bytes]) -> Any:
        name = words[0]
        if name == b"CLUSTER":
            return self.slots.answer()
        keys = words[3 : 3 + int(words[2])] if name[:4] == b"EVAL" else words[1:2]
        refusal = self.refusal(keys) if name != b"PING" else None
        if refusal is not None:
            return refusal
        self._in_script = name[:4] == b"EVAL"
        try:
            return super().execute(words)
        finally:
            self._in_script = False

    def refusal(self, keys: Sequence[bytes]) -> ResponseError | None:
        slot = key_slot(keys[0])
        owner = self.slots.node_of(slot)
        if owner is not self:
            return MovedError(f"{slot} {owner.address[0]}:{owner.address[1]}")
        target = self.slots.moving.get(slot)
        if target is None:
            return None
        here = sum(self.server.exists(key) for key in keys)
        if here == len(keys):
            return None
        if here:
            return TryAgainError("Multiple keys request during rehashing of slot")
        return AskError(f"{slot} {target.address[0]}:{target.address[1]}")

    def fail_over(self, data: Data, ends: dict[bytes, int]) -> None:
        """Have a replica take over, which deletes the keys of slots that have left."""
        for key in [key for key in data if self.slots.node_of(key_slot(key)) is not self]:
            del data[key]
            ends.pop(key, None)
        super().fail_over(data, ends)

    def begin_to_move(self, slot: int, target: Node) -> None:
        self.slots.moving[slot] = target

    def move_keys(self, slot: int, most: int) -> None:
        target = self.slots.moving[slot].server
        here = self.server
        for key in [key for key in here.keys() if key_slot(key) == slot][:most]:  # noqa: SIM118
            target.data[key] = here.data.pop(key)
            end = here.ends.pop(key, None)
            if end is not None:  # what is left of it goes with the key
                target.ends[key] = end - here.now_ms() + target.now_ms()

    def end_move(self, slot: int) -> None:
        """Move the rest, and hand the slot over; its subscribers are told."""
        self.move_keys(slot, SLOTS)
        self.slots.owner[slot] = self.slots.moving.pop(slot)
        for connection in self.connections:
            for channel in sorted(connection.channels):
                if key_slot(channel) == slot:
                    connection.channels.discard(channel)
                    connection.push([b"sunsubscribe", channel, 0])
