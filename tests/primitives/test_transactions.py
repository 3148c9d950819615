"""Locks in transactions on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.transaction import atomic

from django_redis_lock import lock
from tests.contracts.exits import ExitContract
from tests.contracts.transactions import TransactionContract, aliases, execute, is_held


class OnSQLite:
    @pytest.fixture
    def databases(self, tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
        """Two files with a table each, that can be read while they are written."""
        options = {"init_command": "PRAGMA synchronous=OFF; PRAGMA journal_mode=WAL", "timeout": 20}
        with (
            django_db_blocker.unblock(),
            aliases(
                {
                    alias: {"NAME": str(tmp_path / alias), "OPTIONS": options}
                    for alias in ("first", "second")
                }
            ),
        ):
            yield


class TestExitsOnSQLite(OnSQLite, ExitContract):
    """Holds that are left inside of transactions on two SQLite files."""


class TestOnSQLite(OnSQLite, TransactionContract):
    def test_interrupted_commit(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C in the middle of a commit keeps no lock for ever."""
        connection = connections["first"]

        def interrupted(self: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(type(connection), "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt), atomic("first"), lock(name):
            execute("first", "SELECT 1")
        assert not is_held(name)
