"""Spans of time, merged, and what they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[float, float]


class Spans:
    """A set of moments, as spans that do not touch each other."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            elif end >= start:
                self._starts.append(start)
                self._ends.append(end)

    def __iter__(self) -> Iterator[Span]:
        return zip(self._starts, self._ends, strict=True)

    def between(self, start: float, end: float) -> list[Span]:
        """Return the parts of the spans between two moments."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        return [(max(self._starts[i], start), min(self._ends[i], end)) for i in range(first, last)]

    def touch(self, start: float, end: float) -> bool:
        return bool(self.between(start, end))

    def covered(self, start: float, end: float) -> float:
        return sum(b - a for a, b in self.between(start, end))

    def longest_gap(self, start: float, end: float) -> Span:
        """Return the longest time between two moments that is in no span."""
        longest, at = (start, start), start
        for a, b in [*self.between(start, end), (end, end)]:
            if a - at > longest[1] - longest[0]:
                longest = (at, a)
            at = max(at, b)
        return longest
