"""The table "old and new" of a page, and the tests that show its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.tools.docs import DOCS, table

T = TypeVar("T", bound=Callable[..., object])


class Rows:
    """The rows of a page; each names its old and its new side, and has one test."""

    def __init__(self, page: str) -> None:
        self.documented = table(DOCS / "how-to" / page, "Old and new")
        self.shown: list[list[str]] = []

    def show(self, old: str, new: str) -> Callable[[T], T]:
        """Mark the test that shows a row, where the tests stand in the order of the table."""
        self.shown.append([old, new])
        return lambda test: test

    def lack(self, *options: str) -> list[str]:
        """Return the options of the other library that no old side names."""
        old = " ".join(row[0] for row in self.documented)
        return [option for option in options if option not in old]
