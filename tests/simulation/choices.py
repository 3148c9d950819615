"""Where the choices of a schedule come from. Each is a number; 0 is the normal course."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol


class Choices(Protocol):
    """The source of the choices of one schedule."""

    made: list[int]
    """The choices so far."""

    def pick(self, number: int, odds: float = 1.0) -> int:
        """Return one of so many, from 0 up; other than 0 only with these odds."""
        ...


class Chance:
    """Chooses at random, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
        self.made: list[int] = []

    def pick(self, number: int, odds: float = 1.0) -> int:
        normal = odds < 1.0 and self._random() >= odds
        choice = 0 if normal else int(self._random() * number)
        self.made.append(choice)
        return choice


class Replay:
    """Makes given choices, and then takes the normal course."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._given = iter(choices)
        self.made: list[int] = []
        self.numbers: list[int] = []
        """Of how many there was to choose, each time."""

    def pick(self, number: int, odds: float = 1.0) -> int:
        choice = min(next(self._given, 0), number - 1)
        self.made.append(choice)
        self.numbers.append(number)
        return choice
