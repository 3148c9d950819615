"""The table "old and new" of a page, and the tests that show its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.tools.docs import DOCS, table

T = TypeVar("T", bound=Callable[..., object])


class Rows:
    """The rows of a page; each names its old and its new side, and has one test."""

    def __init__(self, page: str) -> None:
        self._page = DOCS / "how-to" / page
        self._shown: list[list[str]] = []

    def show(self, old: str, new: str) -> Callable[[T], T]:
        """Mark the test that shows a row, where the tests stand in the order of the table."""
        self._shown.append([old, new])
        return lambda test: test

    def check(self) -> None:
        """Check that each row of the page has its test, and each test its row."""
        assert table(self._page, "Old and new") == self._shown

    def check_they_name(self, *options: str) -> None:
        """Check that the old side names each option that the other library has."""
        old = " ".join(row[0] for row in table(self._page, "Old and new"))
        assert [option for option in options if option not in old] == []
