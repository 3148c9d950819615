"""What the tests rely on from their windows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.browser.window import Visit


@pytest.fixture
def opened() -> Iterator[list[Page]]:
    pages: list[Page] = []
    yield pages
    assert [page.is_closed() for page in pages] == [True]


def test_a_window_is_closed_before_fixtures_are_undone(visit: Visit, opened: list[Page]) -> None:
    """Its page would go on asking, and meet settings that are not the test's own any more."""
    opened.append(visit().open())
