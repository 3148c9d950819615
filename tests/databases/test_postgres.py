"""The PostgreSQL server that these tests and the load runs start."""

from __future__ import annotations

import signal

import psycopg
import pytest

from example_project.postgres import Postgres, PostgresError
from tests.tools import check_it_dies_with_its_parent


def test_it_takes_clients_and_settings() -> None:
    """A started server accepts clients and has its settings; stopping it removes everything."""
    with Postgres(max_connections=17) as server:
        directory = server.directory
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("17",)
    assert not directory.exists()


def test_stop_does_not_wait_for_clients() -> None:
    """A client that forgot to leave does not hold up the stop."""
    with Postgres() as server:
        connection = psycopg.connect(server.url)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()


def test_bad_configuration_shows_the_log() -> None:
    """A server that does not start says why."""
    with pytest.raises(PostgresError, match="no_such_setting"):
        Postgres(no_such_setting=1).start()


def test_server_dies_with_its_parent() -> None:
    create = "from example_project.postgres import Postgres; server = Postgres()"
    check_it_dies_with_its_parent(create, signal.SIGKILL)
