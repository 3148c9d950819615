"""Fenced rows on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.fencing import FencingContract, tables
from tests.contracts.transactions import aliases


class TestOnSQLite(FencingContract):
    @pytest.fixture
    def database(self, tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
        """A file that can be read while it is written."""
        options = {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF", "timeout": 20}
        entry = {"NAME": str(tmp_path / "first"), "OPTIONS": options}
        with django_db_blocker.unblock(), aliases({"first": entry}), tables():
            yield
