"""All orders at small scope: every choice of the scheduler, up to a depth."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation import faults
from tests.simulation.actors import MODES, Actor
from tests.simulation.layouts import LAYOUTS
from tests.simulation.schedules import Replay, play
from tests.simulation.world import Fault, World

AHEAD = 30
"""How many choices further a schedule shows the next ones; no search gets that far."""


@dataclass(frozen=True)
class Scenario:
    """A few actors, each with a process of its own, and what may happen once at any step."""

    layout: str
    about: str
    ways: Sequence[Callable[[Actor], object]]
    """What each actor does."""
    once: Sequence[Fault] = ()


@dataclass
class Found:
    schedules: int = 0
    depth: int | None = None
    """Up to how many choices all orders were played; ``None`` if these were all."""
    failure: str = ""


def explore(scenario: Scenario, schedules: int) -> Found:
    """Play a scenario in all orders of its first choices, as many as so many schedules reach."""
    found = Found()
    layout = LAYOUTS[scenario.layout]

    def people(world: World) -> None:
        world.once = scenario.once
        for way in scenario.ways:
            world.act(world.process(), "actor", way)

    prefixes: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # the shortest first
    while prefixes and found.schedules < schedules:
        length, prefix = heapq.heappop(prefixes)
        replay = Replay(prefix)
        verdict = play(layout, replay, people=people)
        found.schedules += 1
        if verdict.failure:
            found.failure = f"{verdict.failure} with {replay.made}"
            return found
        for place in range(length, min(length + AHEAD, len(replay.made))):
            for other in range(1, replay.numbers[place]):
                heapq.heappush(prefixes, (place + 1, (*replay.made[:place], other)))
    if prefixes:
        found.depth = prefixes[0][0] - 1
    return found


def _use(actor: Actor) -> None:
    actor.use_simply(5.0, None)


def _use_briefly(actor: Actor) -> None:
    actor.use_simply(5.0, 0.005)


def _use_shortly(actor: Actor) -> None:
    actor.use_simply(0.03, None)


def _read(actor: Actor) -> None:
    actor.use_simply(5.0, None, MODES[0])


def _use_permit(actor: Actor) -> None:
    actor.use_simply(5.0, None, MODES[1])


_DISTURBANCES = (faults.kill, faults.interrupt, faults.meddle)
SCENARIOS = (
    Scenario("queue", "two that wait", (_use, _use)),
    Scenario("queue", "three that wait", (_use, _use, _use)),
    Scenario("queue", "one that gives up, one that waits", (_use_briefly, _use, _use)),
    Scenario("queue", "leases that end", (_use_shortly, _use)),
    Scenario("queue", "an operator", (_use, _use, Actor.break_lock)),
    Scenario("queue", "two, with a fault", (_use, _use), _DISTURBANCES),
    Scenario("asyncio", "two that wait", (_use, _use)),
    Scenario("asyncio", "two, with a fault", (_use, _use), _DISTURBANCES),
    Scenario("blpop", "two that wait", (_use, _use)),
    Scenario("poll", "two that wait", (_use, _use)),
    Scenario("redlock-3", "two that wait", (_use, _use)),
    Scenario("locmem", "two that wait", (_use, _use)),
    Scenario("shared", "readers and a writer", (_read, _use, _read)),
    Scenario("shared", "three for two permits", (_use_permit,) * 3),
    Scenario("shared", "two permits, with a fault", (_use_permit,) * 3, _DISTURBANCES),
)
