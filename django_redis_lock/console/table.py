"""Tables of text that fit a terminal, and run free in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")
Paint = Callable[[str], str]
GAP = "  "
LEAST = 12
"""Columns that an elastic cell keeps at the least, even where the table then is too wide."""
COMFORT = 32
"""Columns that each elastic cell should have before a column that can be spared is shown."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table: its heading, and what it says of a row."""

    heading: str
    cell: Callable[[Row], str]
    right: bool = False
    """Numbers, which stand to the right."""
    elastic: bool = False
    """Whether its cells may be cut to fit the terminal."""
    brief: Callable[[Row], str] | None = None
    """What an elastic cell says instead where the whole of it does not fit."""
    spare: bool = False
    """Whether it is left out where there is no room for it."""
    paint: Callable[[Row, Any], Paint | None] | None = None
    """Gives the colour of a row's cell, by the command's ``style``, if it has one."""


def lines(
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    width: int | None,
    style: Any,
    page: int = 500,
) -> Iterator[str]:
    """Yield the table's pages, each of many lines, as the rows come.

    The first page sets the widths of the columns. ``width`` is that of the terminal; with ``None``
    nothing is cut.
    """
    remaining = iter(rows)
    first = list(islice(remaining, page))
    if not first:
        return
    cells = [[column.cell(row) for row in first] for column in columns]
    needed = [
        max(map(text_width, [column.heading, *texts]))
        for column, texts in zip(columns, cells, strict=True)
    ]
    shown, widths = _fit(columns, needed, width)
    columns = [columns[number] for number in shown]
    heading = [_fill(c.heading, w, right=c.right) for c, w in zip(columns, widths, strict=True)]
    yield style.MIGRATE_HEADING(GAP.join(heading).rstrip())
    for batch in chain([first], _batches(remaining, page)):
        yield "\n".join(_line(columns, widths, row, style, cut=width is not None) for row in batch)


def _batches(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while batch := list(islice(rows, size)):
        yield batch


def _line(
    columns: Sequence[Column[Row]], widths: Sequence[int], row: Row, style: Any, *, cut: bool
) -> str:
    cells = []
    last = len(columns) - 1
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        text = column.cell(row)
        if cut and column.elastic and text_width(text) > width:
            text = shorten(column.brief(row) if column.brief else text, width)
        filled = text if number == last and not column.right else _fill(text, width, column.right)
        paint = column.paint(row, style) if column.paint else None
        cells.append(paint(filled) if paint else filled)
    return GAP.join(cells)


def _fit(
    columns: Sequence[Column[Any]], needed: Sequence[int], width: int | None
) -> tuple[list[int], list[int]]:
    """Return which columns are shown, and how wide each is."""
    shown = list(range(len(columns)))
    if width is None:
        return shown, list(needed)
    while True:
        elastic = [number for number in shown if columns[number].elastic]
        fixed = sum(needed[number] for number in shown if number not in elastic)
        room = width - fixed - len(GAP) * (len(shown) - 1)
        comfort = sum(min(needed[number], COMFORT) for number in elastic)
        spare = [number for number in shown if columns[number].spare]
        if room >= comfort or not spare:
            break
        shown.remove(spare[-1])
    widths = dict(zip(elastic, _share(room, [needed[number] for number in elastic]), strict=True))
    return shown, [widths.get(number, needed[number]) for number in shown]


def _share(room: int, wanted: list[int]) -> list[int]:
    """Divide the room among those who want some, so that who wants little gets it all."""
    given = [0] * len(wanted)
    open_ = sorted(range(len(wanted)), key=lambda number: wanted[number])
    while open_:
        number = open_.pop(0)
        given[number] = min(wanted[number], max(LEAST, room // (len(open_) + 1)))
        room -= given[number]
    return given


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def shorten(text: str, width: int) -> str:
    """Return a text of at most so many columns, its end cut off with an ellipsis."""
    if text_width(text) <= width:
        return text
    taken = 0
    for number, character in enumerate(text):
        taken += _character_width(character)
        if taken > width - 1:
            return text[:number] + "…"
    return text


def _fill(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - text_width(text))
    return blanks + text if right else text + blanks
