"""What the scheduler does to processes, servers and messages. Each fault notes whom it disturbs and
until when, and who may lose a lock by it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from django_redis_lock.protocol.waiting import TURN
from tests.simulation.actors import Interrupted
from tests.simulation.loops import Tasklet
from tests.simulation.network import Fate, Site
from tests.simulation.server import Scores
from tests.simulation.slots import Node
from tests.simulation.world import Thread, World

PAUSES = (0.2, 1.0, 3.0, 8.0)
"""Seconds."""
STEPS = (-30.0, -1.0, 1.0, 30.0, -3.0)
"""Seconds by which a clock is stepped."""
KNOWN = 5.0
"""Seconds for which a process carries a reading of a clock forward."""
FATES = (
    (Fate.LOST, 0.0),
    (Fate.UNANSWERED, 0.0),
    (Fate.LATE, 0.3),
    (Fate.LATE, 3.0),
    (Fate.ANSWERED_LATE, 0.3),
    (Fate.ANSWERED_LATE, 3.0),
)
MISSED = 1.0
"""Seconds for which some servers of a quorum can't be reached, and the others grant locks."""
FORGOT = "a server lost data"
EVICTED = "a server evicted a key"
MOVED = "a slot moved to a server whose clock was ahead"
STEPPED = "a server's clock was stepped"


# Processes.


def pause(world: World) -> bool:
    running = [item for item in world.processes if item.runs]
    if not running:
        return False
    process = world.any_of(running)
    process.resumes_at = world.machine.now + world.any_of(PAUSES)
    process.stopped_until = process.resumes_at
    process.disturb(process.resumes_at)
    world.tell("{} is stopped until {:.3f}", process, process.resumes_at - 1000)
    return True


def kill(world: World) -> bool:
    if len(world.alive) < 2:
        return False
    process = world.any_of(world.alive)
    world.tell("{} is killed", process)
    process.died_at = world.machine.now
    world.machine.kill(process)
    for site in world.sites:
        site.cut(lambda connection: connection.process is process)
    for attempt in world.ledger.attempts:
        if attempt.process is process:
            world.ledger.leaves(attempt)
    call_operator(world)
    if world.parking is not None:
        world.parking.died(process)
    return True


def interrupt(world: World) -> bool:
    """Raise an exception where an actor is blocked, as a signal handler does."""
    blocked = [item for item in world.actors if item.blocked and item.process.runs]
    blocked = [item for item in blocked if not item.name.startswith("operator")]
    if not blocked:
        return False
    thread = world.any_of(blocked)
    _interrupt(world, thread)
    if isinstance(thread, Tasklet) and world.pick(2, 0.5):  # a second one meets it cleaning up
        again = partial(_interrupt, world, thread)
        world.network.send(again, delay=world.any_of((0.0, 0.02, 0.2)), within=0.0)
    return True


def _interrupt(world: World, thread: Thread) -> None:
    if not (thread.blocked and thread.process.runs):
        return
    world.tell("{} is interrupted", thread.name)

    def leave() -> None:
        for attempt in [item for item in world.ledger.waiting if item.thread is thread]:
            world.ledger.leaves(attempt)

    # If it was its turn to ask, another waiter of the process asks a second later.
    thread.process.disturb(world.machine.now + TURN)
    thread.interrupt(Interrupted(world.machine.now), leave)


def change_limit(world: World) -> bool:
    world.act(world.any_of(world.alive), "operator", lambda operator: operator.change_limit())
    return True


def break_lock(world: World) -> bool:
    world.act(world.any_of(world.alive), "operator", lambda operator: operator.break_lock())
    return True


# Messages.


def meddle(world: World) -> bool:
    world.fates = [world.any_of(FATES)] * (1 + world.pick(3, 0.3))
    return True


def cut_connections(world: World) -> bool:
    site = _site(world)
    world.tell("the connections to {} are cut", site.name)
    _disturb(world, world.machine.now)
    site.cut(lambda connection: True)
    return True


def deafen(world: World) -> bool:
    """Let a connection die, of which neither end is told."""
    connections = [item for site in world.sites for item in site.connections]
    if not connections:
        return False
    connection = world.any_of(connections)
    world.tell("a connection of {} goes dead", connection.process)
    connection.deaf = True
    # It is noticed after some silence. Until then no grant arrives there.
    connection.process.disturb(world.machine.now + 15.0)
    return True


def delay_messages(world: World) -> bool:
    site = _site(world)
    delay = PAUSES[world.pick(3)]
    left = [1 + world.pick(3)]

    def lateness(connection: Any) -> float:
        if not left[0]:
            return 0.0
        left[0] -= 1
        world.tell("a message to {} comes {} s late", connection.process, delay)
        connection.process.disturb(world.machine.now + delay)
        return delay

    site.lateness = lateness
    return True


def cut_off(world: World) -> bool:
    _cut_off(world, _site(world), PAUSES[world.pick(3)])
    return True


# Servers.


def flush_scripts(world: World) -> bool:
    _site(world).server.scripts.clear()
    world.tell("the scripts are flushed")
    return True


def restart(world: World) -> bool:
    _restart(world, _site(world), with_data=True, seconds=PAUSES[world.pick(2)])
    return True


def lose_data(world: World) -> bool:
    _restart(world, _site(world), with_data=False, seconds=PAUSES[world.pick(2)])
    return True


def forget_the_last_fence(world: World) -> bool:
    """Let all servers of a quorum but one miss the last fence or lose it, and stop that one.
    Until it runs again, no caller may get a lock. Nothing else fails meanwhile."""
    if not all(map(_votes, world.sites)):
        return False
    world.prepare_faults(0)
    first = world.pick(len(world.sites))
    knows, *others = world.sites[first:] + world.sites[:first]
    for site in others[: world.may_fail]:
        world.tell("server {} can't be reached for {} s", site.name, MISSED)
        site.refuse(MISSED)

    def lose() -> None:
        for site in others[world.may_fail :]:
            _restart(world, site, with_data=False, seconds=0.2)
        _cut_off(world, knows, world.rejoins_after + 2 * MISSED)
        # A process that has heard of a fence never asks for a smaller one, so this one is new.
        seconds = round(world.rejoins_after) + 2
        world.act(world.process(), "visitor", lambda visitor: visitor.visit(seconds))
        world.note()

    world.network.send(lose, delay=1.2 * MISSED)
    _disturb(world, world.machine.now + MISSED)
    return True


def fail_over(world: World) -> bool:
    """Have a replica take over, which lacks the last writes."""
    site = _site(world)
    data, ends = copy.deepcopy(site.server.data), dict(site.server.ends)
    lag = PAUSES[world.pick(2)]

    site.is_doomed = True

    def take_over() -> None:
        site.is_doomed = False
        world.tell("a replica takes over from {} that lacks {} s", site.name, lag)
        _forget(world, site)
        world.stale = True
        site.fail_over(data, ends)
        _forget(world, site)  # holds that come back
        call_operator(world)
        _disturb(world, world.machine.now + 0.1)
        world.note()

    world.network.send(take_over, delay=lag)
    return True


def evict(world: World) -> bool:
    site = _site(world)
    keys = site.server.keys()
    if not keys:
        return False
    key = world.any_of(keys)
    world.tell("{} of server {} is evicted", key.decode(), site.name)
    _forget(world, site)
    if world.may_fail:  # of which that server knows nothing, so it goes on voting
        world.ledger.forgive_all(EVICTED)
    site.server.delete(key)
    _disturb(world, world.machine.now)
    return True


def step_clock(world: World) -> bool:
    site = _site(world)
    step = world.any_of(STEPS)
    world.tell("the clock of server {} is stepped by {} s", site.name, step)
    if world.may_fail:
        _may_lose(world)
        if step > 0:  # the votes of that server end early, and with the next ones make a majority
            world.ledger.forgive_all(STEPPED)
    elif step > 0:
        _excuse_holders(world, site, STEPPED)
        for attempt in world.ledger.waiting:  # they tell from the clock when a grant began
            attempt.forgive(STEPPED)
    site.step_clock(step)
    _disturb(world, world.machine.now + KNOWN)
    return True


def move_slot(world: World) -> bool:
    """Move the slot of a lock to another node, some keys at a time."""
    name = world.any_of(world.names)
    source, slot = world.slot_of(name)
    if slot in source.slots.moving:
        return False
    target: Node = next(item for item in source.slots.nodes if item is not source)
    world.tell("the slot of {} begins to move to {}", name, target.name)
    source.begin_to_move(slot, target)
    seconds = PAUSES[world.pick(2)]

    def excuse_those_who_share() -> None:
        """Note that permits end sooner there: their leases are told by the server's clock."""
        for attempt in world.ledger.attempts:
            if attempt.name == name and attempt.limit is not None and target.offset > source.offset:
                attempt.forgive(MOVED)

    def move_some() -> None:
        if slot in source.slots.moving:
            excuse_those_who_share()
            source.move_keys(slot, 1 + world.pick(3))
            world.note()

    def end() -> None:
        excuse_those_who_share()
        world.tell("the slot of {} is on {} now", name, target.name)
        source.end_move(slot)
        world.note()

    world.network.send(move_some, delay=seconds / 2)
    world.network.send(end, delay=seconds)
    _disturb(world, world.machine.now + seconds)
    return True


def call_operator(world: World) -> None:
    """Let an operator look for locks that nobody will release."""
    world.act(world.alive[0], "operator", lambda operator: operator.break_endless_locks())


def _site(world: World) -> Site:
    """Return one of the servers that may fail: in a quorum not more than a minority at a time."""
    sites = world.sites
    if world.may_fail:
        failing = [site for site in sites if not _votes(site)]
        sites = failing if len(failing) >= world.may_fail else sites
    return sites[world.pick(len(sites))] if len(sites) > 1 else sites[0]


def _votes(site: Site) -> bool:
    """Whether a server of a quorum takes part, after a failure perhaps."""
    server = site.server
    run, _, since = server.data.get(b"lock-server", b"").decode().partition(" ")
    recovered = run == server.run_id and since.isdigit() and int(since) <= server.now_ms()
    if site.is_doomed or not site.up:
        return False
    return recovered and site.cut_off_until <= site.network.machine.now


def _disturb(world: World, until: float) -> None:
    world.disturb(max(until, world.machine.now) + world.rejoins_after)


def _cut_off(world: World, site: Site, seconds: float) -> None:
    site.cut_off(seconds)
    world.late = True
    world.tell("server {} is cut off until {:.3f}", site.name, site.cut_off_until - 1000)
    _disturb(world, site.cut_off_until)


def _restart(world: World, site: Site, *, with_data: bool, seconds: float) -> None:
    world.tell("server {} restarts {} its data, in {} s", site.name,
               "with" if with_data else "without", seconds)  # fmt: skip
    if not with_data:
        _forget(world, site)
    site.restart(seconds, with_data=with_data)
    _disturb(world, world.machine.now + seconds)


def _forget(world: World, site: Site) -> None:
    world.forgotten = True
    world.machine.now += 0.001  # a fence may be ahead of the clock by some microseconds
    _may_lose(world)
    for promise in world.ledger.watchers:
        promise.forgotten()
    _excuse_holders(world, site, FORGOT)


def _may_lose(world: World) -> None:
    """Note that those who have a lock now, or are about to, may be told that it is lost."""
    for attempt in world.ledger.attempts:
        attempt.may_lose = True


def _excuse_holders(world: World, site: Site, why: str) -> None:
    """Excuse those who hold a lock on a server that is about to lose it."""
    if world.may_fail:  # a minority, which changes nothing
        return
    # What is on its way from a node to another may be on both then.
    moves = isinstance(site, Node) and bool(site.slots.moving)
    for each in world.sites if moves else [site]:
        for value in each.server.data.values():
            if isinstance(value, bytes | Scores):  # of one holder, or of several
                for digest, token in world.ledger.tokens.items():
                    if token.encode() in value or digest.encode() in value:
                        world.ledger.by_token[token].forgive(why)
