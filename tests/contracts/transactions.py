"""What a lock promises in a transaction on any database; each database has a test class.

The fixture ``databases`` gives two aliases, ``first`` and ``second``, each with a table ``stock``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connections
from django.db.transaction import atomic
from django.test import override_settings

from django_redis_lock import lock, locks, signals
from django_redis_lock.exceptions import LockError, LockNotOwned, LockUnavailable
from django_redis_lock.primitives import exits
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, told

SCHEMA = (
    "DROP TABLE IF EXISTS sale",
    "DROP TABLE IF EXISTS stock",
    "CREATE TABLE stock (id integer PRIMARY KEY, units integer NOT NULL)",
    "INSERT INTO stock VALUES (1, 10)",
    """CREATE TABLE sale (
        stock_id integer REFERENCES stock (id) DEFERRABLE INITIALLY DEFERRED)""",
)


@contextlib.contextmanager
def aliases(settings: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Add databases to those that Django knows, by alias, and put the tables into them anew."""
    for alias, entry in settings.items():
        connections.settings[alias] = {**connections.settings["default"], **entry}
        for statement in SCHEMA:
            execute(alias, statement)
    try:
        yield
    finally:
        for alias in settings:
            forget_connection(alias)
            del connections.settings[alias]


def forget_connection(alias: str) -> None:
    connections[alias].close()
    del connections[alias]


def execute(alias: str, statement: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


def sell(alias: str = "first") -> None:
    execute(alias, "UPDATE stock SET units = units - 1")


def units(alias: str = "first") -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT units FROM stock")
        return int(cursor.fetchone()[0])


def is_held(name: str) -> bool:
    return locks["default"].holder(name) is not None


@pytest.mark.usefixtures("server", "databases")
class TransactionContract:
    """When a lock is released whose handle is released inside of a transaction."""

    @pytest.mark.parametrize("how", ["_commit", "_rollback"])
    def test_release_comes_after_the_end(
        self, name: str, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lock is still held when the database has just ended the transaction."""
        seen = []
        kind = type(connections["first"])
        end = getattr(kind, how)

        def watched(connection: Any) -> None:
            end(connection)
            seen.append(is_held(name))

        monkeypatch.setattr(kind, how, watched)
        with contextlib.suppress(KeyError), atomic("first"):
            with lock(name):
                sell()
            if how == "_rollback":
                raise KeyError
        assert seen == [True]
        assert not is_held(name)

    def test_server_that_cannot_be_asked_rolls_back(
        self, own_server: EmbeddedServer, name: str
    ) -> None:
        """If the server can't say whether the lock is held, nothing is committed."""
        entry = {**locks.settings["default"], "LOCATION": own_server.url()}
        with override_settings(LOCKS={"default": entry}):
            with pytest.raises(LockUnavailable), atomic("first"):
                with lock(name):
                    sell()
                own_server.kill()
            assert units() == 10
            own_server.restart()
            assert not is_held(name)

    def test_handle_holds_until_then(self, name: str) -> None:
        """A handle whose release waits holds its lock and can be used, but not released again."""
        with atomic("first"):
            held = lock(name, timeout=20)
            held.acquire()
            held.release()
            assert held.owned()
            assert not held.lost
            assert held.fence > 0
            held.extend(20)
            assert held.remaining > 30
            for again in (held.release, lambda: held.detach(5)):
                with pytest.raises(LockNotOwned, match="when the transaction ends"):
                    again()
        with pytest.raises(LockNotOwned):
            held.ensure_held()
        assert held.acquire(blocking=False)

    def test_upgrade_in_a_transaction_is_refused(self, name: str) -> None:
        """Who has shared a lock in it still does; the error says why it can't be had alone."""
        with atomic("first"):
            with lock(name, shared=True) as held:
                sell()
            with pytest.raises(LockError, match="in a transaction: after its end"):
                lock(name).acquire()
            assert held.owned()
        with lock(name):
            pass

    def test_manual_transactions(self, name: str) -> None:
        """With autocommit switched off the lock waits for ``commit()`` or ``rollback()``."""
        connection = connections["first"]
        connection.set_autocommit(False)
        try:
            for end in ("commit", "rollback"):
                with lock(name):
                    sell()
                assert is_held(name)
                with atomic("first"), lock(f"{name}-2"):
                    sell()
                assert is_held(f"{name}-2")
                getattr(connection, end)()
                assert not is_held(name)
                assert not is_held(f"{name}-2")
        finally:
            connection.set_autocommit(True)
        assert units() == 8

    def test_connection_closed_in_the_middle(self, name: str) -> None:
        """A connection that is closed ends its transaction, and the lock is released."""
        with contextlib.suppress(DatabaseError), atomic("first"):
            with lock(name):
                sell()
            connections["first"].close()
            assert not is_held(name)
            with lock(name):
                pass
            assert not is_held(name)
        assert units() == 10

    def test_commit_that_fails(self, name: str) -> None:
        """A commit that the database refuses is rolled back, and the lock is released."""
        with pytest.raises(IntegrityError), atomic("first"):
            with lock(name):
                execute("first", "INSERT INTO sale VALUES (99)")
            assert is_held(name)
        assert not is_held(name)

    def test_failing_release_is_retried(
        self, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A release that fails after the commit is retried; the transaction has not failed."""
        connection = connections["first"]
        with EmbeddedServer(persist=True) as server:
            commit = type(connection)._commit

            def commit_and_kill(self: Any) -> None:
                commit(self)
                server.kill()

            monkeypatch.setattr(type(connection), "_commit", commit_and_kill)
            entry = {**locks.settings["default"], "LOCATION": server.url()}
            with override_settings(LOCKS={"default": entry}):
                with told(signals.lock_unavailable) as outages, atomic("first"), lock(name):
                    sell()
                assert len(outages) == 1
                assert any(
                    "retrying in the background" in record.getMessage() for record in caplog.records
                )
                assert units() == 9
                server.restart()
                eventually(lambda: not is_held(name))

    def test_costs_one_call(self, name: str, client: Any) -> None:
        """A transaction costs one more call, or none if no lock was released in it."""
        calls = {}
        for inside in (False, True):
            with lock(f"{name}-0"):
                pass
            client.config_resetstat()
            with atomic("first"):
                if inside:
                    with lock(name):
                        pass
            calls[inside] = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        assert calls == {False: 0, True: 3}

    def test_without_the_app(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        """Without the app a lock is released at once, and the first such release says so."""
        exits._warn_not_installed.cache_clear()
        others = [app for app in settings.INSTALLED_APPS if app != "django_redis_lock"]
        with override_settings(INSTALLED_APPS=others), atomic("first"):
            for after_commit, warnings in ((False, 0), (True, 1), (True, 1)):
                with lock(name, after_commit=after_commit):
                    pass
                assert not is_held(name)
                assert caplog.text.count("'django_redis_lock' to INSTALLED_APPS") == warnings
