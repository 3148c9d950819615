"""A server with replicas, which callers wait for, and one of which takes over. A replica has what
its master had when something arrived there last: the first writes, and none of the others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django_redis_lock.protocol.lease import token_id
from django_redis_lock.transport.clients import NOTHING
from tests.simulation import faults
from tests.simulation.network import Site
from tests.simulation.server import Server
from tests.simulation.world import World

RENEWED = "a replica took over that lacked a renewal"
RELEASED = "a replica took over that lacked a release"
BEHIND = "a replica took over that lacked what only another had acknowledged"


@dataclass(eq=False)
class Replica:
    data: dict[bytes, Any] = field(default_factory=dict)
    ends: dict[bytes, int] = field(default_factory=dict)
    known: int = 0
    """How many writes it has."""
    lags_until: float = 0.0
    _follows: bool = False

    def follow(self, master: Master) -> None:
        """Let what the master has by then arrive some time after now, if there is anything new."""
        if self.known < master.server.writes and not self._follows:
            self._follows, delay = True, self.lags_until - master.network.machine.now
            master.network.send(lambda: self._receive(master), delay=max(delay, 0.0))

    def _receive(self, master: Master) -> None:
        self._follows, server = False, master.server
        if self.lags_until > master.network.machine.now:
            self.follow(master)
            return
        self.data = {key: copy.copy(value) for key, value in server.data.items()}
        self.ends, self.known = dict(server.ends), server.writes
        master.answer()


class Master(Site):
    def __init__(self, network: Any, name: str, executed: Any, number: int, needed: int) -> None:
        self.needed = needed
        """How many replicas callers wait for."""
        self.replicas = [Replica() for _ in range(number)]
        self._waits: list[tuple[Any, int]] = []
        super().__init__(network, name, executed)

    def _start(self) -> Server:
        server = super()._start()
        server.writes = getattr(self, "server", server).writes + 1
        return server

    def execute(self, words: Sequence[bytes]) -> Any:
        reply = super().execute(words)
        for replica in self.replicas:
            replica.follow(self)
        return reply

    def serve(self, wire: Any, words: Sequence[bytes]) -> Any:
        if words[0] == b"WAIT":
            wait = wire, int(words[1])
            self._waits.append(wait)
            self.answer()
            self.network.send(lambda: self.answer(wait), delay=int(words[2]) / 1000)
            return NOTHING
        before = self.server.writes
        reply = self.execute(words)
        if self.server.writes > before:
            wire.wrote = self.server, self.server.writes
        return reply

    def answer(self, overdue: tuple[Any, int] | None = None) -> None:
        """Answer those whose writes enough replicas have, and one that has waited for too long."""
        for wait in list(self._waits):
            wire, number = wait
            known = sum(replica.known >= wire.wrote[1] for replica in self.replicas)
            is_cut = wire.wrote[0] not in (None, self.server)  # which ends with its server
            if is_cut or known >= number or wait is overdue:
                self._waits.remove(wait)
                wire.break_off() if is_cut else wire.push(known)

    def hand_over(self, replica: Replica) -> None:
        """Have a replica take over, whose data the others get."""
        self.fail_over(copy.deepcopy(replica.data), dict(replica.ends))
        for each in self.replicas:
            each.data, each.ends, each.known = replica.data, replica.ends, self.server.writes


def fail_over(world: World) -> bool:
    """Let no, one or all replicas fall behind, and have one take over then."""
    (site,) = world.sites
    assert isinstance(site, Master)
    seconds = faults.PAUSES[world.pick(2)]
    until = world.machine.now + 2 * seconds
    late = site.replicas[: world.pick(len(site.replicas) + 1)]
    for replica in late:
        replica.lags_until = until
    world.tell("{} replicas fall behind until {:.3f}", len(late), until - 1000)
    world.disturb(until)
    world.network.send(lambda: _take_over(world, site), delay=seconds)
    return True


def _take_over(world: World, site: Master) -> None:
    """Have the replica with the most data take over, or another. A lock is excused if REPLICAS
    promises nothing for it: its renewal or release was lost, or it was not to be known there."""
    ranked = sorted(site.replicas, key=lambda replica: -replica.known)
    replica = world.any_of(ranked)
    world.tell("a replica takes over that has {} of {} writes", replica.known, site.server.writes)
    before = _ends(world)
    world.machine.now += 0.001  # a fence may be ahead of the clock by some microseconds
    was_behind = replica.known < ranked[0].known and site.needed < len(ranked)
    keys, data = {name: f"lock:{name}".encode() for name in world.names}, site.server.data
    differ = {name for name, key in keys.items() if data.get(key) != replica.data.get(key)}
    site.hand_over(replica)
    after = _ends(world)
    for attempt in world.ledger.attempts:
        token, value = attempt.token, replica.data.get(keys[attempt.name], b"")
        if was_behind and attempt.name in differ:
            attempt.forgive(BEHIND)
        elif token.encode() in value or token_id(token.encode()).encode() in value:
            if token not in before:
                attempt.forgive(RELEASED)
            elif after.get(token, 0.0) < before[token]:
                attempt.forgive(RENEWED)
    world.forgotten = world.stale = True
    for promise in world.ledger.watchers:
        promise.forgotten()
    faults.call_operator(world)
    world.disturb(world.machine.now + 0.1)
    world.note()


def _ends(world: World) -> dict[str, float]:
    """Return until when locks are held, by their tokens."""
    assert world.view is not None
    world.view.seen.clear()
    return {hold.token: hold.end for name in world.names for hold in world.view.holds(name)}
