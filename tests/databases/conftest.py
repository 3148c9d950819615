"""The PostgreSQL server that these tests run on."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from example_project.postgres import Postgres

DATABASES = ("first", "second")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the whole run, with two databases."""
    with Postgres() as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            for name in DATABASES:
                admin.execute(f"CREATE DATABASE {name}")
        yield server
