"""The admin's log on a PostgreSQL whose tables somebody has locked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.utils import translation

from django_redis_lock import lock, locks
from django_redis_lock.admin.release import release as admin_release
from django_redis_lock.operators.adminlog import DATABASE_TIMEOUT
from django_redis_lock.operators.breaking import Outcome, Result, release_shown
from example_project.embedded import EmbeddedServer
from example_project.postgres import Postgres
from tests.contracts.transactions import aliases
from tests.tools import eventually


class ToPostgres:
    """A router that has everything on the server."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "first"

    db_for_write = db_for_read


@pytest.fixture
def database(postgres: Postgres, django_db_blocker: Any, settings: Any) -> Iterator[str]:
    """A database with the tables of the admin's log and a user; its URL."""
    settings.DATABASE_ROUTERS = [ToPostgres()]
    entry = {"first": postgres.settings(NAME="first", OPTIONS={})}
    with django_db_blocker.unblock(), aliases(entry):
        models = [ContentType, Permission, Group, User, LogEntry]
        with connections["first"].schema_editor() as editor:
            for model in models:
                editor.create_model(model)
        User.objects.create(username="ada")
        yield postgres.url.rpartition("/")[0] + "/first"
        ContentType.objects.clear_cache()
        with connections["first"].schema_editor() as editor:
            for model in reversed(models):
                editor.delete_model(model)


def release(name: str) -> Outcome:
    lock(name).acquire()
    holder = locks["default"].holder(name)
    assert holder
    (outcome,) = release_shown([holder], by="ada", reason="stuck", user="ada")
    assert outcome.result is Result.RELEASED
    return outcome


@pytest.mark.parametrize("table", ["auth_user", "django_admin_log"])
def test_locked_table_delays_a_release_briefly(
    server: EmbeddedServer, database: str, name: str, table: str
) -> None:
    """The lock is free at once; after two seconds the outcome says that the log has no entry."""
    with psycopg.connect(database) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        outcome = release(name)
        assert DATABASE_TIMEOUT <= time.monotonic() - began < DATABASE_TIMEOUT + 10
        assert "did not answer" in outcome.unlogged
        assert locks["default"].holder(name) is None
    eventually(lambda: _sessions(database) == 1)  # that of this thread, when the other is through
    assert not LogEntry.objects.exists()  # as was said
    assert release(name).unlogged == ""
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.object_repr) == ("ada", name)
    eventually(lambda: _sessions(database) == 1)


def test_locked_table_does_not_hold_up_the_admin_page(
    server: EmbeddedServer, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both locks are released, and the page says what is not in the log."""
    monkeypatch.setattr("django_redis_lock.operators.adminlog.DATABASE_TIMEOUT", 0.2)
    names = [f"{name}:1", f"{name}:2"]
    for one in names:
        lock(one).acquire()
    tickets = [locks["default"].holder(one) for one in names]
    user = User.objects.get()
    with psycopg.connect(database) as other, translation.override("en"):
        other.execute("LOCK TABLE django_admin_log IN ACCESS EXCLUSIVE MODE")
        told = admin_release(tickets, user, "stuck")
        assert ["not in the admin's log: the database" in text for _, text in told] == [True] * 2
        assert [locks["default"].holder(one) for one in names] == [None, None]
    eventually(lambda: _sessions(database) == 1)


def _sessions(database: str) -> int:
    with psycopg.connect(database, autocommit=True) as admin:
        found = admin.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = 'first' AND pid != pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return len(found.fetchall())
