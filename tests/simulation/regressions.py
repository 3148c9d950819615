"""Schedules that failed once, with as few choices as do it, which ``schedules/`` keeps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.simulation.choices import Replay

KEPT = Path(__file__).parent / "schedules"


@dataclass
class Regression:
    """The choices of a schedule."""

    about: str
    """What it broke."""
    layout: str
    choices: list[int]

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def text(self) -> str:
        """Return what its file has."""
        return json.dumps(asdict(self))

    def choose(self) -> Replay:
        """Return these choices."""
        return Replay(self.choices)


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
    """Return fewer and smaller choices that still fail.

    They are taken out in blocks, as in delta debugging (Zeller and Hildebrandt, 2002), and then
    made smaller one by one.
    """
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
