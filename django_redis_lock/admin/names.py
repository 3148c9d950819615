"""Very many names in little memory, a tenth of what as many texts take."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import compress, islice

from django_redis_lock.backends.index import in_pages

PAGE = 1000
"""Names per text; reading one name splits a text."""
PART, SAMPLES = 20_000, 50
"""Names that are sorted at once, about, and samples per part to find where the parts begin."""


class Names:
    """An ordered list of lock names with their aliases; each has a number.

    Names of locks contain no line breaks.
    """

    def __init__(self, found: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        """Take runs of names, each of one alias."""
        self._aliases: list[str] = []
        self._pages: list[str] = []
        self._usings = array("H")
        waiting: list[str] = []
        for using, names in found:
            if using not in self._aliases:
                self._aliases.append(using)
            left, number = iter(names), self._aliases.index(using)
            while some := list(islice(left, PAGE - len(waiting))):
                waiting += some
                self._usings.extend([number] * len(some))
                if len(waiting) == PAGE:
                    self._pages.append("\n".join(waiting))
                    waiting.clear()
        if waiting:
            self._pages.append("\n".join(waiting))

    def __len__(self) -> int:
        return len(self._usings)

    def __iter__(self) -> Iterator[str]:
        for page in self._pages:
            yield from page.split("\n")

    def keys(self, numbers: Iterable[int]) -> list[tuple[str, str]]:
        """Return the (alias, name) of some numbers."""
        split: dict[int, list[str]] = {}
        found = []
        for number in numbers:
            page, line = divmod(number, PAGE)
            names = split.get(page) or split.setdefault(page, self._pages[page].split("\n"))
            found.append((self._aliases[self._usings[number]], names[line]))
        return found

    def of(self, using: str, numbers: Iterable[int]) -> Sequence[int]:
        """Return those numbers that belong to an alias."""
        wanted = self._aliases.index(using) if using in self._aliases else -1
        return array("L", (number for number in numbers if self._usings[number] == wanted))

    def without(self, usings: Container[str]) -> Names:
        """Return the names of the other aliases, in the same order."""
        wanted = [using not in usings for using in self._aliases]
        kept = [wanted[number] for number in self._usings]
        left = Names()
        left._aliases = self._aliases
        left._usings.extend(compress(self._usings, kept))
        left._pages += map("\n".join, in_pages(compress(self, kept), PAGE))
        return left

    def having(self, words: Sequence[str]) -> Sequence[int]:
        """Return the numbers of the names that contain each word, ignoring case."""
        found = array("L")
        for first, page in enumerate(self._pages):
            folded = page.casefold()
            if all(word in folded for word in words):
                found.extend(
                    first * PAGE + line
                    for line, name in enumerate(folded.split("\n"))
                    if all(word in name for word in words)
                )
        return found

    def by_name(self) -> Sequence[int]:
        """Return all numbers ordered by name and alias.

        They are sorted a part at a time, so that only the names of one part are in memory as texts.
        """
        numbers = array("L")
        edges = sorted(islice(self, 0, None, PART // SAMPLES))[SAMPLES::SAMPLES]
        for low, high in zip(["", *edges], [*edges, None], strict=True):
            part = {
                number: f"{name}\n{self._aliases[self._usings[number]]}"
                for number, name in enumerate(self)
                if name >= low and (high is None or name < high)
            }
            numbers.extend(sorted(part, key=part.__getitem__))
        return numbers

    def by_alias(self, numbers: Iterable[int]) -> list[int]:
        """Return numbers ordered by alias, otherwise as they are."""
        return sorted(numbers, key=lambda number: self._aliases[self._usings[number]])
