"""The PostgreSQL server that these tests run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from example_project.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the whole run."""
    with Postgres() as server:
        yield server
