"""One run of the shop for all tests, and the option that renews what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.observability.stage import Stage, running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="put the recorded series and the picture of this run into the documentation",
    )


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The shop, after everything has happened in it."""
    with running() as stage:
        stage.play()
        yield stage
