"""What a lock promises in a transaction on any database; each database has a test class.

The fixture ``databases`` gives two aliases, ``first`` and ``second``, each with a table ``stock``.
"""

from __future__ import annotations

import contextlib
import logging
import unittest
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connections
from django.db.transaction import atomic, on_commit
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.exceptions import LockError, LockLost, LockNotOwned, LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters

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


def units_for_others(alias: str = "first") -> int:
    """Return how many there are for another connection."""

    def look() -> int:
        try:
            return units(alias)
        finally:
            forget_connection(alias)

    return int(Background(look).outcome())


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

    def test_next_holder_sees_what_the_one_before_wrote(self, name: str) -> None:
        """The next holder gets the lock when the row can be read."""

        def next_holder() -> int:
            try:
                with lock(name):
                    return units()
            finally:
                forget_connection("first")

        with atomic("first"):
            with lock(name):
                sell()
                waiter = Background(next_holder)
                eventually(lambda: waiters(name) == 1)
            assert waiters(name) == 1
        assert waiter.outcome() == 9

    def test_release_waits_for_the_rollback(self, name: str) -> None:
        """After an exception the lock is released when the transaction has been rolled back."""
        with pytest.raises(KeyError), atomic("first"):
            with pytest.raises(ZeroDivisionError), lock(name):
                sell()
                raise ZeroDivisionError
            assert is_held(name)
            raise KeyError
        assert not is_held(name)
        assert units() == 10

    def test_release_waits_for_the_outermost_block(self, name: str) -> None:
        """Neither the end nor the rollback of a nested block releases the lock or prevents that."""
        with atomic("first"):
            with atomic("first"), lock(name):
                sell()
            assert is_held(name)
            with contextlib.suppress(KeyError), atomic("first"):
                with lock(f"{name}-2"):
                    sell()
                raise KeyError
            with atomic("first", savepoint=False), lock(f"{name}-3"):
                sell()
            assert all(map(is_held, [name, f"{name}-2", f"{name}-3"]))
        assert not any(map(is_held, [name, f"{name}-2", f"{name}-3"]))
        assert units() == 8

    def test_release_waits_for_every_database(self, name: str) -> None:
        """With transactions on several databases the end of the last one releases the lock."""
        with atomic("first"):
            with atomic("second"):
                with lock(name):
                    sell("first")
                    sell("second")
                assert is_held(name)
            assert is_held(name)
            assert units_for_others("second") == 9
        assert not is_held(name)

    def test_commit_hooks_find_the_lock_free(self, name: str) -> None:
        """An ``on_commit`` callback runs after the release, and can acquire the lock."""
        seen = []
        with atomic("first"):
            on_commit(lambda: seen.append(is_held(name)), using="first")
            with lock(name):
                sell()
        assert seen == [False]

    def test_lock_around_the_transaction(self, name: str) -> None:
        """A lock around a transaction is released at the end of its own block."""
        with lock(name):
            with atomic("first"):
                sell()
            assert is_held(name)
        assert not is_held(name)

    def test_lost_lease_rolls_back(self, name: str) -> None:
        """If the lease was lost before the commit, the transaction is rolled back."""
        with pytest.raises(LockLost) as caught, atomic("first"):
            with lock(name):
                sell()
            locks["default"].force_release(name)
            on_commit(lambda: pytest.fail("was committed"), using="first")
        assert caught.value.name == name
        assert units_for_others() == 10
        with atomic("first"):
            sell()
        assert units_for_others() == 9

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

    @pytest.mark.parametrize("make", [lock, partial(semaphore, limit=1)], ids=["lock", "permit"])
    def test_same_lock_again_in_one_transaction(self, name: str, make: Any) -> None:
        """A lock released in this transaction can be acquired again in it, by any handle."""
        one, fences = make(name), []

        @make(name, timeout=7)
        def decorated() -> None:
            fences.append(locks["default"].holder(name).fence)

        with atomic("first"):
            for held in (one, one, make(name, timeout=5), make(name, reentrant=True)):
                with held:
                    fences.append(held.fence)
                    held.ensure_held()
                assert is_held(name)
            decorated()
            decorated()
            with one:
                assert one.remaining > 20
        assert len(set(fences)) == 1
        assert not is_held(name)

    def test_upgrade_in_a_transaction_is_refused(self, name: str) -> None:
        """Who has shared a lock in it still does; the error says why it can't be had alone."""
        with atomic("first"):
            with lock(name, shared=True) as held:
                sell()
            with pytest.raises(LockError, match="Release it first, after a transaction"):
                lock(name).acquire()
            assert held.owned()
        with lock(name):
            pass

    def test_what_was_had_alone_is_not_shared_before_the_end(self, name: str) -> None:
        """Readers that were let in earlier would not see what was written."""

        def read() -> int:
            try:
                with lock(name, shared=True):
                    return units()
            finally:
                forget_connection("first")

        with atomic("first"):
            with lock(name):
                sell()
                reader = Background(read)
                eventually(lambda: waiters(name) == 1)
            with lock(name, shared=True) as again:
                again.ensure_held()
                assert not locks["default"].holder(name).shared
            assert waiters(name) == 1
        assert reader.outcome() == 9

    def test_switched_off(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        """With ``after_commit=False`` the lock is released at once, with a warning."""
        with atomic("first"):
            with lock(name, after_commit=False):
                sell()
            assert not is_held(name)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert name in record.getMessage()
        assert "'first'" in record.getMessage()

    def test_reentrant(self, name: str) -> None:
        """Only the last of several releases is deferred; the others release nothing."""
        with atomic("first"):
            with lock(name, reentrant=True) as outer, lock(name, reentrant=True) as inner:
                assert inner.fence == outer.fence
            assert is_held(name)
        assert not is_held(name)

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
                with atomic("first"), lock(name):
                    sell()
                assert any("trying again" in record.getMessage() for record in caplog.records)
                assert units() == 9
                server.restart()
                eventually(lambda: not is_held(name))

    @pytest.mark.parametrize("fails", [False, True])
    def test_requests_in_a_transaction(self, name: str, fails: bool) -> None:
        """With ATOMIC_REQUESTS a view's lock is held until its response has been made."""
        seen = []

        def view(request: HttpRequest) -> HttpResponse:
            with lock(name):
                sell()
            seen.append(is_held(name))
            if fails:
                raise KeyError
            return HttpResponse()

        urls = type("urls", (), {"urlpatterns": [path("sell/", view)]})
        connections.settings["first"]["ATOMIC_REQUESTS"] = True
        with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]):
            response = Client(raise_request_exception=False).get("/sell/")
        assert (response.status_code, seen) == (500 if fails else 200, [True])
        assert not is_held(name)
        assert units() == (10 if fails else 9)

    def test_test_case(self, name: str) -> None:
        """In a ``TestCase`` its own transaction does not count, and those inside of it do."""

        class Case(TestCase):
            databases = {"first"}  # noqa: RUF012 - as Django has it

            def test(self) -> None:
                with lock(name):
                    pass
                assert not is_held(name)
                with atomic("first"):
                    with atomic("first"), lock(name):
                        sell()
                    assert is_held(name)
                assert not is_held(name)
                with contextlib.suppress(KeyError), atomic("first"), lock(name):
                    raise KeyError
                assert not is_held(name)
                with atomic("first", savepoint=False):
                    with lock(name):
                        pass
                    assert not is_held(name)
                with pytest.raises(LockLost), atomic("first"):
                    with lock(name):
                        sell()
                    locks["default"].force_release(name)
                assert units() == 9
                with atomic("first", durable=True), lock(name):
                    pass
                assert not is_held(name)

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
        assert (result.testsRun, result.errors, result.failures) == (1, [], [])
        assert units() == 10

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

    def test_without_the_app(self, name: str) -> None:
        """Without the app in ``INSTALLED_APPS`` a lock is released at once, as documented."""
        others = [app for app in settings.INSTALLED_APPS if app != "django_redis_lock"]
        with override_settings(INSTALLED_APPS=others), atomic("first"):
            with lock(name):
                pass
            assert not is_held(name)
