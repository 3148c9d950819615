"""Writes results to standard output and notices to standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from django.core.management.color import no_style

from django_redis_lock.support.text import without_passwords

Row = TypeVar("Row")
SCHEMA = 1
"""The version of the JSON; it rises when a key is removed or changes its meaning."""
BATCH = 250
"""Items or rows per write."""
GAP = "  "
CELLS = 4
"""How many of the longest cells a line of a terminal has room for; in a pipe nothing is cut."""

_encode = json.JSONEncoder(check_circular=False, default=datetime.isoformat).encode


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table: its heading, and the text of a row's cell."""

    heading: str
    cell: Callable[[Row], str]
    right: bool = False
    """Whether its cells are aligned to the right, as numbers are."""


class Terminal:
    """The two streams of the command, and what they can show."""

    def __init__(self, out: Any, err: Any, style: Any, *, force_color: bool, as_json: bool) -> None:
        self._out = out
        self._err = err
        self.as_json = as_json
        wanted = force_color or (out.isatty() and not os.environ.get("NO_COLOR"))
        self.style = style if wanted else no_style()

    def say(self, text: str = "") -> None:
        self._out.write(text)

    def notice(self, text: str) -> None:
        """Write a notice to standard error, without passwords."""
        self._err.write(without_passwords(text))

    def table(
        self,
        columns: Sequence[Column[Row]],
        rows: Iterable[Row],
        warn: Callable[[Row], object] = lambda row: False,
    ) -> None:
        """Write a table as its rows are read; the first ones set the widths of its columns.

        ``warn`` says which rows are coloured.
        """
        remaining = iter(rows)
        width = shutil.get_terminal_size().columns if self._out.isatty() else None
        most = None if width is None else width // CELLS
        widths: list[int] = []
        while batch := list(islice(remaining, BATCH)):
            cells = [[_cut(column.cell(row), most) for column in columns] for row in batch]
            if not widths:
                headings = [column.heading for column in columns]
                widths = [max(map(len, texts)) for texts in zip(headings, *cells, strict=True)]
                self.say(self.style.MIGRATE_HEADING(_line(columns, widths, headings, width)))
            lines = [_line(columns, widths, texts, width) for texts in cells]
            paint = self.style.WARNING
            marked = zip(batch, lines, strict=True)
            self.say("\n".join(paint(line) if warn(row) else line for row, line in marked))
            self._out.flush()

    def json_object(
        self,
        name: str,
        items: Iterable[Any],
        trailer: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Write a JSON object with the schema's version, the items, and what ``trailer`` returns.

        The items are written as they are read, one per line.
        """
        remaining = map(_encode, items)
        before = f'{{"schema": {SCHEMA}, {json.dumps(name)}: ['
        gap = "\n"
        while batch := list(islice(remaining, BATCH)):
            self._write_raw(before + gap + ",\n".join(batch))
            before = ","
        if before != ",":  # no items
            self._write_raw(before)
            gap = ""
        rest = (f", {json.dumps(key)}: {json.dumps(item)}" for key, item in trailer().items())
        self._write_raw(f"{gap}]{''.join(rest)}}}\n")

    def _write_raw(self, text: str) -> None:
        self._out.write(text, ending="")
        self._out.flush()

    def confirm(self, question: str) -> bool:
        """Ask for a yes or no. No input means no. Raises ``KeyboardInterrupt``."""
        return self.ask(f"{question} [y/N]").lower() in ("y", "yes")

    def ask(self, question: str) -> str:
        """Ask on standard error; return the answer. Raises ``KeyboardInterrupt``."""
        answer = ""
        try:
            self._err.write(f"{question} ", ending="")
            self._err.flush()
            answer = sys.stdin.readline()
        finally:
            if not answer.endswith("\n"):
                self._err.write("")
        return answer.strip()


def _line(
    columns: Sequence[Column[Any]], widths: Sequence[int], texts: Sequence[str], most: int | None
) -> str:
    cells = zip(columns, widths, texts, strict=True)
    shown = (text.rjust(width) if one.right else text.ljust(width) for one, width, text in cells)
    return _cut(GAP.join(shown).rstrip(), most)


def _cut(text: str, width: int | None) -> str:
    """Cut a text to a width, if it has one, ending in an ellipsis."""
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"
