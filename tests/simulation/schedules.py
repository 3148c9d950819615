"""One schedule: a world, what happens in it, and the verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation import product
from tests.simulation.choices import Choices
from tests.simulation.layouts import Layout
from tests.simulation.promises import NothingLeft
from tests.simulation.world import Broken, TooLong, World

FAULTS = 3
"""How many faults a schedule has at most."""
SETTLED = 6.0
"""Seconds within which what could not be sent is sent, and stopped processes run again."""


@dataclass
class Verdict:
    """What came of a schedule."""

    choices: list[int]
    steps: int
    failure: str = ""
    """Which promise was broken, and how."""
    expected: Counter[str] = field(default_factory=Counter)
    story: Sequence[str] = ()

    @property
    def promise(self) -> str:
        """The name of the broken promise."""
        return self.failure.partition(":")[0]


def play(layout: Layout, choices: Choices, *, telling: bool = False,
         people: Callable[[World], object] | None = None) -> Verdict:  # fmt: skip
    """Play a schedule; ``people`` starts the actors, in place of random ones and their faults."""
    product.begin()
    world = World(choices, telling=telling)
    verdict = Verdict(choices.made, 0)
    try:
        layout.furnish(world)
        if people is None:
            _populate(world, layout)
        else:
            people(world)
        world.run()
        _settle(world)
        world.end()
    except Broken as error:
        verdict.failure = str(error)
    except TooLong as error:
        verdict.failure = f"TooLong: {error}"
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        verdict.failure = f"{type(error).__name__}: {error} ({trace.name}, line {trace.lineno})"
    finally:
        world.close()
    verdict.steps, verdict.expected, verdict.story = world.steps, world.expected, world.story
    return verdict


def _populate(world: World, layout: Layout) -> None:
    """Start some processes with some threads."""
    for _ in range(layout.processes + world.pick(2, 0.5)):
        process = world.process()
        threads = 1 + world.pick(2, 0.6) + (layout.processes == 1)
        for _ in range(threads):
            world.start(process, world.actor(world, process).run, "actor")
    if world.parking is not None:
        world.parking.begin()
    world.prepare_faults(FAULTS)


def _settle(world: World) -> None:
    """Wait for what is done in the background, if anything has to be."""
    checks = [item for item in world.ledger.watchers if isinstance(item, NothingLeft)]
    if any(check.pending() for check in checks):
        world.settle(SETTLED)
