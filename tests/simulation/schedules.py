"""One schedule: its choices, what happens in it, and the verdict; and those that failed once."""

from __future__ import annotations

import json
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from tests.simulation import product
from tests.simulation.layouts import LAYOUTS, Layout
from tests.simulation.promises import NothingLeft
from tests.simulation.world import Broken, Choices, TooLong, World

FAULTS = 3
"""How many faults a schedule has at most."""
SETTLED = 6.0
"""Seconds within which what could not be sent is sent, and stopped processes run again."""
KEPT = Path(__file__).parent / "schedules"


class Chance(Choices):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed).random

    def choose(self, number: int, odds: float) -> int:
        normal = odds < 1.0 and self._random() >= odds
        return 0 if normal else int(self._random() * number)


class Replay(Choices):
    """Makes given choices, and then takes the normal course."""

    def __init__(self, choices: Iterable[int]) -> None:
        super().__init__()
        self._given = iter(choices)

    def choose(self, number: int, odds: float) -> int:
        return min(next(self._given, 0), number - 1)


@dataclass
class Verdict:
    choices: list[int]
    steps: int = 0
    failure: str = ""
    """Which promise was broken, and how."""
    expected: Counter[str] = field(default_factory=Counter)
    story: Sequence[str] = ()

    @property
    def promise(self) -> str:
        return self.failure.partition(":")[0]


def play(layout: Layout, choices: Choices, *, telling: bool = False,
         people: Callable[[World], object] | None = None) -> Verdict:  # fmt: skip
    """Play a schedule; ``people`` starts the actors, in place of random ones and their faults."""
    product.begin()
    world = World(choices, telling=telling)
    verdict = Verdict(choices.made)
    try:
        layout.furnish(world)
        if people is None:
            _populate(world, layout)
        else:
            people(world)
        world.run()
        checks = [item for item in world.ledger.watchers if isinstance(item, NothingLeft)]
        if any(check.pending() for check in checks):  # it is cleaned up in the background
            world.settle(SETTLED)
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
    for _ in range(layout.processes + world.pick(2, 0.5)):
        process = world.process()
        threads = 1 + world.pick(2, 0.6) + (layout.processes == 1)
        for _ in range(threads):
            world.start(process, world.actor(world, process).run, "actor")
    if world.parking is not None:
        world.parking.begin()
    world.prepare_faults(FAULTS)


@dataclass
class Regression:
    """The choices of a schedule that failed once, with as few as do it."""

    about: str
    """What it broke."""
    layout: str
    choices: list[int]

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def text(self) -> str:
        return json.dumps(asdict(self))

    def play(self, *, telling: bool = False) -> Verdict:
        return play(LAYOUTS[self.layout], Replay(self.choices), telling=telling)

    def least(self) -> Regression:
        """Return the least of it that still breaks the same promise."""
        first = self.play().promise

        def fails(choices: list[int]) -> bool:
            return Regression("", self.layout, choices).play().promise == first

        found = Regression("", self.layout, shrink(self.choices, fails))
        found.about = found.play().failure
        return found


def vary(choices: Sequence[int], dice: random.Random) -> list[int]:
    """Return choices of which a few are left out, put in or replaced."""
    varied = list(choices)
    for _ in range(1 + dice.randrange(6)):
        place = dice.randrange(len(varied) + 1)
        some = 1 + int(dice.expovariate(0.5))
        old, new = dice.choice(((some, 0), (0, some), (1, 1)))
        varied[place : place + old] = [int(dice.expovariate(0.8)) for _ in range(new)]
    return varied


def shrink(choices: Sequence[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """Return fewer and smaller choices that still fail. They are taken out in blocks, as in delta
    debugging (Zeller and Hildebrandt, 2002), and then made smaller one by one."""
    best, block = list(choices), len(choices)
    while block:
        start = 0
        while start < len(best):
            candidate = best[:start] + best[start + block :]
            if fails(candidate):
                best = candidate
            else:
                start += block
        block //= 2
    for place in range(len(best)):
        while choice := best[place]:
            smaller = (
                [*best[:place], less, *best[place + 1 :]] for less in {0, choice // 2, choice - 1}
            )
            found = next(filter(fails, smaller), None)
            if found is None:
                break
            best = found
    return best
