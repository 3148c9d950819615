"""The names of the held locks, read in pages from an index that changes meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from heapq import merge
from itertools import islice
from re import compile as compile_pattern

from django_redis_lock.protocol.calls import Call, ReadIndex, Steps, ask
from django_redis_lock.support.arguments import MAX_NAME_LENGTH, check_name

Page = tuple[list[str | None], list[str], bytes]
"""Names (``None`` for what another program put there), the ends of their leases, and the last
member as it is in the index."""


def write_page(entries: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return entries, each a name and a lease end, in the form of the reply of ``index.lua``."""
    names, ends, name = [], [], b""
    for name, end in entries:
        names.append(b"" if b"\n" in name else name)
        ends.append(end)
    return [b"\n".join(names), b"\n".join(ends), name]


def read_page(answer: Sequence[bytes]) -> Page:
    """Read a reply of ``index.lua``.

    To be fast, it handles all names of a page at once. Only a page that holds something else is
    read name by name.
    """
    joined, ends, last = answer
    if not ends:
        return [], [], b""
    lease_ends = ends.decode().split("\n")
    with suppress(ValueError):
        text = joined.decode()
        names = text.split("\n")
        longest = max(map(len, names))
        if all(names) and longest <= MAX_NAME_LENGTH and text.replace("\n", "").isprintable():
            return [*names], lease_ends, last
    return [_name(member) for member in joined.split(b"\n")], lease_ends, last


def _name(member: bytes) -> str | None:
    """Return a member of the index as a name, ``None`` if it is not one."""
    try:
        return check_name(member.decode())
    except ValueError:
        return None


class Index:
    """The names of the held locks with their lease ends, in a tenth of the memory of a dict."""

    def __init__(self, pattern: str = "*") -> None:
        self._matches = None if pattern == "*" else compile_pattern(translate(pattern)).match
        self._pages: list[tuple[str, array[float]]] = []  # no name contains a line break
        self.start = ""
        self.after = b""
        self.more = True

    def add(self, page: Page, size: int) -> None:
        """Add a page, and note where the next one begins.

        An offset would not do: when an entry leaves, one that was not read yet takes its place. The
        next page begins at the last lease end, so that some names come twice and count once. If the
        whole page has one lease end, as leases without end do, it begins after the last name.
        """
        names: Sequence[str | None]
        names, ends, last = page
        self.more = len(ends) == size
        if ends:
            self.start = ends[-1]
            self.after = last if ends[0] == self.start else b""
        figures, matches = array("d", map(float, ends)), self._matches
        if matches is not None or None in names:
            wanted = [
                (name, end)
                for name, end in zip(names, figures, strict=True)
                if name is not None and (matches is None or matches(name))
            ]
            names, figures = [name for name, _ in wanted], array("d", [end for _, end in wanted])
        if names:
            self._pages.append(("\n".join(names), figures))  # type: ignore[arg-type]

    def latest(self) -> Iterator[tuple[str, float]]:
        """Yield each name with the end of its lease in ms (infinite for none), the latest first.

        This works only once: each page is dropped as it is yielded.
        """
        marks = self._marks()
        seen: set[str] = set()
        while self._pages:
            text, ends = self._pages.pop()
            for name, end in zip(reversed(text.split("\n")), reversed(ends), strict=True):
                if marks and marks[hash(name) % len(marks)] > 1:
                    if name in seen:
                        continue  # renewed since this page was read
                    seen.add(name)
                yield name, end

    def _marks(self) -> bytearray:
        """Return a table by hash that has 2 where two names collide, as equal names do.

        So only few names have to be remembered to find duplicates. A single page has none.
        """
        if len(self._pages) < 2:
            return bytearray()
        marks = bytearray(8 * sum(len(ends) for _, ends in self._pages))
        for text, _ in self._pages:
            for name in text.split("\n"):
                place = hash(name) % len(marks)
                marks[place] = 2 if marks[place] else 1
        return marks


class Indexes(Index):
    """The indexes of several servers or shards, which are read together.

    With ``same`` they have names in common.
    """

    def __init__(self, pattern: str, number: int, *, same: bool = False) -> None:
        self.parts = [Index(pattern) for _ in range(number)]
        self._same = same

    def read(self, size: int) -> Steps[Index]:
        """Read ``size`` names of each at a time."""
        while any(part.more for part in self.parts):
            pages = yield from ask(ReadPages(self.parts, size))
            for part, page in zip(self.parts, pages, strict=True):
                if page is None:
                    part.more = False
                elif part.more:
                    part.add(read_page(page), size)
        return self

    def latest(self) -> Iterator[tuple[str, float]]:
        parts = [part.latest() for part in self.parts]
        seen: set[str] = set()
        for name, end in merge(*parts, key=lambda item: (item[1], item[0]), reverse=True):
            if name not in seen:
                if self._same:
                    seen.add(name)
                yield name, end


@dataclass(slots=True, eq=False)
class ReadPages(Call):
    """Read a page of each of some indexes; ``None`` stands for one that could not be read."""

    parts: Sequence[Index]
    size: int

    def of(self, number: int) -> ReadIndex:
        """Return the call for one of them."""
        return ReadIndex(self.parts[number].start, self.parts[number].after, self.size)


def read_whole(pattern: str, size: int) -> Steps[Index]:
    """Read the index of a server, ``size`` names at a time."""
    index = Index(pattern)
    while index.more:
        answer = yield from ask(ReadIndex(index.start, index.after, size))
        index.add(read_page(answer), size)
    return index


def names_of(index: Index) -> Iterator[str]:
    """Yield the names of an index, the latest lease end first. This works only once."""
    return (name for name, _ in index.latest())


def in_pages(names: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield names in lists of up to ``size``."""
    left = iter(names)
    while page := list(islice(left, size)):
        yield page
