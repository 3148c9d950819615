"""What a backend has stored, as the promises see it."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from django_redis_lock.backends.clusters import topology
from django_redis_lock.backends.clusters.topology import shard_of
from django_redis_lock.backends.getset import read_stamp
from django_redis_lock.backends.locmem import LocMemLockBackend
from tests.simulation.network import EPOCH, Site
from tests.simulation.server import Server
from tests.simulation.slots import Node, Slots

_UNCLAIMED = re.compile(rb'\S+ \d+ {"unclaimed":"')


class Hold(NamedTuple):
    """Who holds a lock."""

    token: str
    end: float
    """When the lease ends, in seconds of the monotonic clock; infinite for one without end."""
    unclaimed: bool = False
    """Whether it was handed off, and its new holder has not been heard of yet."""


class View(ABC):
    """What is stored."""

    def __init__(self) -> None:
        self.seen: dict[str, Hold | None] = {}
        """Who holds which lock, as seen since the last step."""

    def hold(self, name: str) -> Hold | None:
        """Return who holds a lock, ``None`` if it is free."""
        if name not in self.seen:
            self.seen[name] = self._hold(name)
        return self.seen[name]

    @abstractmethod
    def _hold(self, name: str) -> Hold | None: ...

    def queue(self, name: str) -> list[str]:
        """Return the tokens of those that wait, the first in line first."""
        return []


class ServerView(View):
    """One server."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def place(self, name: str) -> tuple[Site, str]:
        """Return where a lock is, and the tag in its keys."""
        return self.site, ""

    def _hold(self, name: str) -> Hold | None:
        site, tag = self.place(name)
        return hold_at(site, f"lock{tag}:{name}".encode())

    def queue(self, name: str) -> list[str]:
        site, tag = self.place(name)
        entries = stored(site.server, f"lock-queue{tag}:{name}".encode())
        return [entry.split(b" ", 2)[1].decode() for entry in entries or ()]


class ClusterView(ServerView):
    """The node that serves the slot of a lock."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots.nodes[0])
        self.slots = slots

    def slot_of(self, name: str) -> tuple[Node, int]:
        """Return the slot of a lock, and the node that serves it."""
        slot = topology.SHARD_SLOTS[shard_of(name)]
        return self.slots.node_of(slot), slot

    def place(self, name: str) -> tuple[Site, str]:
        node, slot = self.slot_of(name)
        tag = f":{{{topology.TAGS[shard_of(name)]}}}"
        key = f"lock{tag}:{name}".encode()
        target = self.slots.moving.get(slot)
        if target is None or stored(node.server, key) is not None:
            return node, tag
        return (node if stored(target.server, key) is None else target), tag


class QuorumView(View):
    """What a majority of independent servers says."""

    def __init__(self, sites: list[Site]) -> None:
        super().__init__()
        self.sites = sites

    def _hold(self, name: str) -> Hold | None:
        """Return who has the most votes; a lock without any majority counts as free."""
        key = f"lock:{name}".encode()
        found = [hold for site in self.sites if (hold := hold_at(site, key)) is not None]
        needed = len(self.sites) // 2 + 1
        for hold in found:
            ends = sorted((item.end for item in found if item.token == hold.token), reverse=True)
            if len(ends) >= needed:
                return Hold(hold.token, ends[needed - 1])
        if len(found) >= needed:  # held by several, none of which has it
            return Hold("", 0.0)
        return None


class TimesView(View):
    """A server whose locks are the times at which they end."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def _hold(self, name: str) -> Hold | None:
        value = stored(self.site.server, f"lock:{name}".encode())
        if value is None:
            return None
        stamp = read_stamp(value)
        end = stamp.end_ms / 1000 - EPOCH / 1_000_000 - self.site.offset
        if end < self.site.network.machine.now:
            return None
        return Hold(stamp.token.decode(), end)


class MemoryView(View):
    """The memory of a process."""

    def __init__(self, backend: LocMemLockBackend) -> None:
        super().__init__()
        self._backend = backend

    def _hold(self, name: str) -> Hold | None:
        held = self._backend.store._get((self._backend.key_prefix, name))
        return None if held is None else Hold(held.token, held.end)

    def queue(self, name: str) -> list[str]:
        entries = self._backend.store._queues.get((self._backend.key_prefix, name), ())
        return [entry.split(" ", 2)[1] for entry in entries]


def stored(server: Server, key: bytes) -> Any:
    """Return what a key has; ``None`` if it does not exist."""
    return server.data[key] if server.exists(key) else None


def hold_at(site: Site, key: bytes) -> Hold | None:
    """Return who holds a lock on a server."""
    value = stored(site.server, key)
    if value is None:
        return None
    token = value.split(b" ", 1)[0].decode()
    end_ms = site.server.ends.get(key)
    # A key is gone in the millisecond after its last.
    end = math.inf if end_ms is None else (end_ms + 1) / 1000 - EPOCH / 1_000_000 - site.offset
    return Hold(token, end, _UNCLAIMED.match(value) is not None)
