"""Writes results to standard output and notices to standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.core.management.color import no_style

from django_redis_lock.management.console.table import Column, lines
from django_redis_lock.support.text import without_passwords

Row = TypeVar("Row")
SCHEMA = 1
"""The version of the JSON; it rises when a key is removed or changes its meaning."""
BATCH = 250
"""Items per write."""

_encode = json.JSONEncoder(check_circular=False).encode


class Terminal:
    """The two streams of the command, and what they can show."""

    def __init__(self, out: Any, err: Any, style: Any, *, force_color: bool, as_json: bool) -> None:
        self._out = out
        self._err = err
        self.as_json = as_json
        wanted = force_color or (out.isatty() and not os.environ.get("NO_COLOR"))
        self.style = style if wanted and not as_json else no_style()

    @property
    def is_interactive(self) -> bool:
        return bool(self._out.isatty())

    @property
    def colourful(self) -> bool:
        return bool(self.style.ERROR("") != "")

    def fade(self, text: str) -> str:
        """Return an outdated text in grey, if there are colours."""
        return f"\x1b[2m{text}\x1b[0m" if self.colourful else text

    @property
    def width(self) -> int | None:
        """The columns of the terminal; ``None`` in a pipe, where nothing is cut."""
        return shutil.get_terminal_size().columns if self.is_interactive else None

    @property
    def height(self) -> int:
        return shutil.get_terminal_size().lines

    def say(self, text: str = "") -> None:
        self._out.write(text)

    def redraw(self, text: str) -> None:
        """Overwrite the screen from its top; in a pipe, append."""
        if self.is_interactive:
            text = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in text.splitlines()) + "\x1b[J"
        self._out.write(text, ending="")
        self._out.flush()

    def notice(self, text: str) -> None:
        """Write a notice to standard error, without passwords."""
        self._err.write(without_passwords(text))

    def table(self, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
        """Write a table page by page, as its rows are read."""
        for page in lines(columns, rows, width=self.width, style=self.style):
            self.say(page)
            self._out.flush()

    def json_object(
        self,
        name: str,
        items: Iterable[Any],
        trailer: Callable[[], Mapping[str, Any]] = dict,
        *,
        one_line: bool = False,
    ) -> None:
        """Write a JSON object with the schema's version, the items, and what ``trailer`` returns.

        The items are written as they are read, one per line, or all on one with ``one_line``.
        """
        gap = "" if one_line else "\n"
        before = f'{{"schema": {SCHEMA}, {json.dumps(name)}: [{gap}'
        batch: list[str] = []
        for item in items:
            batch.append(before + _encode(item))
            before = f",{gap or ' '}"
            if len(batch) == BATCH:
                self._write_raw("".join(batch))
                batch.clear()
        if before[0] == "{":  # no items
            batch.append(before.rstrip("\n"))
            gap = ""
        rest = "".join(
            f", {json.dumps(key)}: {json.dumps(item)}" for key, item in trailer().items()
        )
        self._write_raw("".join(batch) + f"{gap}]{rest}}}\n")

    def _write_raw(self, text: str) -> None:
        self._out.write(text, ending="")
        self._out.flush()

    @property
    def can_answer(self) -> bool:
        """Whether questions are answered on a terminal, and not by another program."""
        return sys.stdin is not None and sys.stdin.isatty()

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
