"""Finds fewer choices with which a schedule fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_TRIES = 1500


def shrink(choices: Sequence[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """Return the least that was found to fail, after so many tries at most.

    Choices are taken out in blocks, as in delta debugging (Zeller and Hildebrandt, 2002), and then
    made smaller one by one. Those that are left out at the end are 0, the normal course.
    """
    search = _Search(choices, fails)
    before: list[int] = []
    while before != search.best and search.tries < MOST_TRIES:
        before = search.best
        search.cut_the_end()
        search.take_out_blocks()
        search.make_smaller()
    return search.best


class _Search:
    def __init__(self, choices: Sequence[int], fails: Callable[[list[int]], bool]) -> None:
        self.best = _stripped(choices)
        self.tries = 0
        self._fails = fails

    def _takes(self, candidate: list[int]) -> bool:
        self.tries += 1
        if self.tries > MOST_TRIES or not self._fails(candidate):
            return False
        self.best = _stripped(candidate)
        return True

    def cut_the_end(self) -> None:
        cut = len(self.best) // 2
        while cut:
            if not self._takes(self.best[:-cut]):
                cut //= 2
            cut = min(cut, len(self.best) // 2)

    def take_out_blocks(self) -> None:
        block = len(self.best) // 2
        while block:
            start = 0
            while start < len(self.best):
                if not self._takes(self.best[:start] + self.best[start + block :]):
                    start += block
            block //= 2

    def make_smaller(self) -> None:
        for place in range(len(self.best)):
            while place < len(self.best) and (choice := self.best[place]):
                rest = self.best[place + 1 :]
                if not any(
                    self._takes([*self.best[:place], smaller, *rest])
                    for smaller in dict.fromkeys((0, choice // 2, choice - 1))
                ):
                    break


def _stripped(choices: Sequence[int]) -> list[int]:
    """Return the choices up to the last that is not 0."""
    last = max((place for place, choice in enumerate(choices) if choice), default=-1)
    return list(choices[: last + 1])
