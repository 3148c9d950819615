"""What a backend has stored, as the promises see it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from django_redis_lock.backends.clusters import topology
from django_redis_lock.backends.clusters.topology import shard_of
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.protocol.lease import limit_in
from django_redis_lock.protocol.records import split_value
from tests.simulation import threads
from tests.simulation.network import EPOCH, Site
from tests.simulation.server import Hash, Scores, Server
from tests.simulation.slots import Node, Slots

OUTBOX = "broker"
"""Where parked messages wait to be published."""


class Hold(NamedTuple):
    token: str
    end: float
    """When the lease ends, in seconds of the monotonic clock; infinite for one with no expiry."""
    unclaimed: bool = False
    """Whether it was handed off, and its new holder has not been heard of yet."""
    limit: float | None = None
    """How many may hold it together, as its holder says; ``None`` for one who has it alone."""
    fence: int = 0


class View(ABC):
    def __init__(self) -> None:
        self.seen: dict[str, list[Hold]] = {}
        """Who holds which lock, as seen since the last step."""
        self.tokens: Mapping[str, str] = {}
        """Each token by its digest."""

    def holds(self, name: str) -> list[Hold]:
        """Return who holds a lock, by rising fences."""
        if name not in self.seen:
            self.seen[name] = sorted(self._holds(name), key=attrgetter("fence"))
        return self.seen[name]

    @abstractmethod
    def _holds(self, name: str) -> list[Hold]: ...

    def positions(self, name: str) -> dict[str, float]:
        """Return the tokens of those that wait and their positions, the first in line first."""
        return {}

    def queue(self, name: str) -> list[str]:
        """Return the tokens of those that wait, the first in line first."""
        return list(self.positions(name))

    def limit(self, name: str) -> int | None:
        return None

    def loose_parts(self, name: str) -> set[bytes]:
        """Return what is stored of permits without the rest of them."""
        return set()


class ServerView(View):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.sites: Sequence[Site] = [site]

    def place(self, name: str) -> tuple[Site, str]:
        """Return where a lock is, and the tag in its keys."""
        return self.site, ""

    def part(self, name: str, kind: str = "", rest: str | None = None) -> Any:
        """Return what a key of a lock has, on any server."""
        return self._anywhere(f"lock{kind}{self.place(name)[1]}:{name if rest is None else rest}")

    def _anywhere(self, key: str) -> Any:
        """Return what a key has; in a cluster it may just move."""
        found = (stored(site.server, key.encode()) for site in self.sites)
        return next(filter(None, found), None)

    def _holds(self, name: str) -> list[Hold]:
        site, tag = self.place(name)
        return [
            hold._replace(token=self.tokens.get(hold.token, hold.token))
            for hold in holds_at(site, f"lock{tag}:{name}".encode(), self.part(name, "-permits"))
        ]

    def limit(self, name: str) -> int | None:
        value = (self._anywhere(f"lock-limits{self.place(name)[1]}") or {}).get(name.encode())
        return None if value is None else int(value.split()[0])

    def loose_parts(self, name: str) -> set[bytes]:
        value = self.part(name)
        ids = set(value) if isinstance(value, Scores) else set()
        return ids ^ set(self.part(name, "-permits") or {})

    def waiters(self, name: str, process: str) -> list[tuple[float, str]]:
        """Return the positions and tokens of those that wait for a lock in a process."""
        entries = self.part(name, "-waiters", f"{process}:{name}") or Scores()
        tokens = self.part(name, "-tokens", f"{process}:{name}") or Hash()
        digests = [(score, entry.partition(b" ")[0]) for entry, score in entries.items()]
        return [(score, tokens[each].decode()) for score, each in digests if each in tokens]

    def parked(self, name: str, rest: str) -> Any:
        """Return what is stored of parked messages where a lock is."""
        return self.part(name, "-parked", f"{OUTBOX}:{rest}") or {}

    def backlogs(self, name: str) -> dict[str, tuple[float, list[str]]]:
        """Return for each turn where the next one is, and the tokens that wait for it in line."""
        found = {}
        for turn, at in self.parked(name, f"turns:{name}").items():
            line = self.parked(name, f"backlog:{turn.decode()}:{name}")
            found[turn.decode()] = at, [token.decode() for token in sorted(line, key=line.get)]
        return found

    def positions(self, name: str) -> dict[str, float]:
        queue = self.part(name, "-queue")
        processes = queue if isinstance(queue, Scores) else ()  # which are not silent; and outboxes
        each = [self.waiters(name, process.decode()) for process in processes]
        each += [[(at, token) for token in line[:1]] for at, line in self.backlogs(name).values()]
        return {token: position for position, token in sorted(chain(*each))}

    def queue(self, name: str) -> list[str]:
        later = [line[1:] for _, line in self.backlogs(name).values()]
        return [*self.positions(name), *chain(*later)]


class ClusterView(ServerView):
    def __init__(self, slots: Slots) -> None:
        super().__init__(slots.nodes[0])
        self.slots, self.sites = slots, slots.nodes

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

    def _holds(self, name: str) -> list[Hold]:
        """Return who has the most votes; a lock without any majority counts as free."""
        key = f"lock:{name}".encode()
        found = [hold for site in self.sites for hold in holds_at(site, key)]
        needed = len(self.sites) // 2 + 1
        for hold in found:
            ends = sorted((item.end for item in found if item.token == hold.token), reverse=True)
            if len(ends) >= needed:
                return [Hold(hold.token, ends[needed - 1])]
        if len(found) >= needed:  # held by several, none of which has it
            return [Hold("", 0.0)]
        return []


class MemoryView(View):
    def __init__(self, backend: LocMemLockBackend) -> None:
        super().__init__()
        self._backend = backend

    def _holds(self, name: str) -> list[Hold]:
        return [
            Hold(held.token, held.end, limit=limit_in(held.record), fence=held.fence)
            for held in self._backend.store._holders.get(name, {}).values()
            if held.end > threads.machine.now
        ]

    def limit(self, name: str) -> int | None:
        value = self._backend.store.limits.get(name)
        return None if value is None else int(value.split()[0])

    def positions(self, name: str) -> dict[str, float]:
        queue = self._backend.store._queues.get(name, ())
        return {request.token: position for position, request in queue}


def stored(server: Server, key: bytes) -> Any:
    """Return what a key has; ``None`` if it does not exist."""
    return server.data[key] if server.exists(key) else None


def holds_at(site: Site, key: bytes, permits: Any = None) -> list[Hold]:
    """Return who holds a lock on a server, by its value or by those of its permits."""
    value, since = stored(site.server, key), EPOCH / 1_000_000 + site.offset
    if value is None:
        return []
    if isinstance(value, Scores):
        found = [
            _hold(token, (permits or {}).get(token, b"- 0 - *"), (score + 1) / 1000 - since)
            for token, score in value.items()
        ]
        # One that is overdue is there until somebody looks.
        return [hold for hold in found if hold.unclaimed or hold.end > site.network.machine.now]
    token = value.partition(b" ")[0]
    end_ms = site.server.ends.get(key)
    # A key is gone in the millisecond after its last.
    return [_hold(token, value, math.inf if end_ms is None else (end_ms + 1) / 1000 - since)]


def _hold(token: bytes, value: bytes, end: float) -> Hold:
    _, fence, claim, limit, _ = split_value(value)
    if not fence.isdigit():  # another program's
        return Hold(token.decode(), end)
    return Hold(token.decode(), end, b":" in claim, limit_in(limit.decode()), int(fence))
