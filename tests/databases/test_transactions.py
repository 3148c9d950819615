"""Locks in transactions on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import Error, connections
from django.db.transaction import atomic

from django_redis_lock import lock
from example_project.postgres import Postgres
from tests.contracts.exits import Hold
from tests.contracts.transactions import TransactionContract, aliases, is_held, sell, units
from tests.databases.conftest import DATABASES


class TestOnPostgreSQL(TransactionContract):
    @pytest.fixture
    def databases(self, postgres: Postgres, django_db_blocker: Any) -> Iterator[None]:
        entries = {alias: postgres.settings(NAME=alias, OPTIONS={}) for alias in DATABASES}
        with django_db_blocker.unblock(), aliases(entries):
            yield

    @pytest.mark.parametrize(
        "context",
        ["commit", "rollback", "savepoint", "savepoint undone", "two databases", "forced release"],
    )
    def test_exit_takes_effect_at_the_end(self, name: str, context: str) -> None:
        """As that of each kind, and each exit, on SQLite."""
        Hold(name, "lock", "release").carry_out(context)

    def test_connection_that_breaks(self, postgres: Postgres, name: str) -> None:
        """If the server closes the connection the lock is released, and nothing was written."""
        with contextlib.suppress(Error), atomic("first"):
            with lock(name):
                sell()
            with connections["first"].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (pid,) = cursor.fetchone()
            with psycopg.connect(postgres.url) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            assert is_held(name)
        assert not is_held(name)
        assert units() == 10
