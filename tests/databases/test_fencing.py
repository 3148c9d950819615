"""Fenced rows on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from example_project.postgres import Postgres
from tests.contracts.fencing import FencingContract, tables
from tests.contracts.transactions import aliases
from tests.tools import eventually


class TestOnPostgreSQL(FencingContract):
    @pytest.fixture
    def database(self, postgres: Postgres, django_db_blocker: Any) -> Iterator[None]:
        self.url = postgres.url
        entry = postgres.settings(NAME="first", OPTIONS={})
        with django_db_blocker.unblock(), aliases({"first": entry}), tables():
            yield

    def session(self, connection: Any) -> int:
        connection.ensure_connection()
        return int(connection.connection.info.backend_pid)

    def wait_until_blocked(self, session: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            eventually(lambda: admin.execute(query, [session]).fetchone() == (True,))
