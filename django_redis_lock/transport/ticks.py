"""The calls of a beat that leads: when it has sent which entry of its schedule."""

from __future__ import annotations

from dataclasses import dataclass

from django_redis_lock.protocol.calls import Call
from django_redis_lock.transport.packing import HASH, Encoded, Packing, Script

TICK = Script("tick")


@dataclass(slots=True, eq=False, repr=False)
class ReadTicks(Call):
    """Return when each entry was sent, as a list of entries and times in turn."""

    name: str
    """The lock of the leader."""

    def encode(self, packing: Packing) -> Encoded:
        return HASH, [packing.ticks_prefix + self.name], []


@dataclass(slots=True, eq=False, repr=False)
class NoteTick(Call):
    """Note that an entry is sent. Answers whether the caller leads; otherwise it must not be."""

    name: str
    token: str
    entry: str
    at: float
    """The time in seconds since the epoch, by the clock of the caller, as in its schedule."""

    def encode(self, packing: Packing) -> Encoded:
        keys = [packing.lock_prefix + self.name, packing.ticks_prefix + self.name]
        return TICK, keys, [self.token, self.entry, f"{self.at:.6f}"]
