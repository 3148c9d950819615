"""Results as markdown tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frame.figures import dig

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: the path of its value in a row, its heading, and how to print the value."""

    key: str
    heading: str
    show: Callable[[Any], str] = str


def table(columns: Sequence[Column], rows: Iterable[tuple[str, Row]]) -> str:
    """Return a table with a title and the figures of each row, or the row's error."""
    body = []
    for title, row in rows:
        cells = [column.show(dig(row, column.key)) for column in columns if "error" not in row]
        failed = [f"failed: {row.get('error')}"] + [""] * (len(columns) - 1)
        body.append((title, *(cells or failed)))
    return grid(("", *(column.heading for column in columns)), body)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table that is also readable as plain text."""
    cells = [head, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def marks(target: str) -> tuple[str, str]:
    """Return the lines of a page between which a target of the Makefile writes."""
    return f"<!-- begin: make {target} -->", f"<!-- end: make {target} -->"


def put_into(page: Path, target: str, text: str) -> None:
    begin, end = marks(target)
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page} needs the lines {begin!r} and {end!r}; the table goes between.")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
