"""Releasing exactly what was shown: what becomes of each lock, and where it is written."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction

from django_redis_lock import Holder, lock, locks
from django_redis_lock.exceptions import LockLost
from django_redis_lock.models import HeldLock
from django_redis_lock.operators.adminlog import log_releases
from django_redis_lock.operators.breaking import Result, release_shown
from django_redis_lock.support.text import visible, without_passwords
from example_project.embedded import EmbeddedServer
from tests.contracts.transactions import aliases
from tests.tools import Background, eventually, waiters


@dataclass(frozen=True)
class Ticket:
    """All that has to be known of a hold that was shown."""

    using: str
    name: str
    token_id: str


def shown(name: str, using: str = "default") -> Holder:
    holder = locks[using].holder(name)
    assert holder
    return holder


def test_what_was_shown_is_released(
    name: str, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock still held by the holder that was shown is released, logged, and in the audit."""
    held = lock(name)
    held.acquire()
    before = shown(name)
    with caplog.at_level(logging.WARNING, "django_redis_lock"):
        (outcome,) = release_shown([before], by="ada", reason="it\nhangs")
    assert (outcome.shown, outcome.result, outcome.holder) == (before, Result.RELEASED, None)
    assert outcome.loser.token_id == before.token_id
    (line,) = caplog.messages
    assert name in line
    assert str(before) in line
    assert line.endswith("by ada: it\\nhangs")
    (entry,) = locks["default"].history(name)
    assert (entry.by, entry.reason) == ("ada", "it\nhangs")
    with pytest.raises(LockLost):
        held.release()


def test_lock_that_changed_hands_is_left_alone(name: str, server: EmbeddedServer) -> None:
    """A holder that was not shown keeps the lock, and is named."""
    with lock(name):
        before = shown(name)
    with lock(name) as successor:
        ticket = Ticket("default", name, before.token_id)
        (outcome,) = release_shown([ticket], by="ada")
        successor.ensure_held()
        assert (outcome.shown, outcome.result, outcome.loser) == (ticket, Result.CHANGED, None)
        assert outcome.holder.fence == successor.fence
    assert locks["default"].history(name) == []


def test_lock_that_nobody_holds_any_more_is_gone(name: str, server: EmbeddedServer) -> None:
    """What ended by itself is said to be gone; so is what was named twice."""
    with lock(name):
        before = shown(name)
    assert [item.result for item in release_shown([before], by="ada")] == [Result.GONE]
    lock(name).acquire()
    twice = [shown(name)] * 2
    results = [item.result for item in release_shown(twice, by="ada")]
    assert results == [Result.RELEASED, Result.GONE]


def test_next_waiter_is_named(name: str, server: EmbeddedServer) -> None:
    """The waiter to whom a released lock was handed is told."""
    lock(name).acquire()
    heir = lock(name)
    waiting = Background(heir.acquire)
    eventually(lambda: waiters(name) == 1)
    (outcome,) = release_shown([shown(name)], by="ada")
    assert waiting.outcome() is True
    assert outcome.holder.fence == heir.fence
    heir.release()


def test_server_that_does_not_answer_is_asked_once(
    name: str, server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks are said to be unknown, without a try for each; others are released."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "down": {"LOCATION": "redis://ada:secret@127.0.0.1:1/0"},
    }
    lock(name).acquire()
    down = [Ticket("down", str(number), "0" * 16) for number in range(3)]
    asked = []
    monkeypatch.setattr(
        locks["down"], "call", lambda call, real=locks["down"].call: (asked.append(1), real(call))
    )
    outcomes = list(release_shown([*down, shown(name), Ticket("no", "a", "0")], by="ada"))
    assert [item.result for item in outcomes] == [
        *[Result.UNAVAILABLE] * 3,
        Result.RELEASED,
        Result.UNAVAILABLE,
    ]
    assert len(asked) == 1
    assert "127.0.0.1:1" in outcomes[2].error
    assert "no alias 'no'" in outcomes[4].error


def test_name_that_can_be_nobodys_is_told(server: EmbeddedServer) -> None:
    """A name that no lock can have, as a forged request may bring it, hinders nothing else."""
    (outcome,) = release_shown([Ticket("default", "a\nb", "0" * 16)], by="ada")
    assert outcome.result is Result.UNAVAILABLE
    assert "control characters" in outcome.error


def test_reason_that_can_not_be_kept_is_refused_at_once(name: str, server: EmbeddedServer) -> None:
    """The error comes with the call, before anything is released."""
    with lock(name) as held:
        with pytest.raises(ValueError, match="at most 500"):
            release_shown([shown(name)], by="ada", reason="x" * 501)
        held.ensure_held()


@pytest.mark.django_db
def test_release_by_a_user_is_in_the_log_of_the_admin(name: str, server: EmbeddedServer) -> None:
    """The admin's log says who took which lock from whom and why, and leads to the lock's page."""
    user = get_user_model().objects.create_superuser("ada")
    lock(name).acquire()
    before = shown(name)
    list(release_shown([before], by="ada", reason="stuck\x1b", user=user))
    (entry,) = LogEntry.objects.all()
    assert (entry.user, entry.action_flag) == (user, CHANGE)
    assert entry.object_id == HeldLock.of("default", name).pk
    assert entry.object_repr == name
    assert entry.content_type.model_class() is HeldLock
    assert str(before) in entry.get_change_message()
    assert entry.get_change_message().endswith("Reason: stuck\\x1b")


@pytest.mark.django_db
def test_release_by_no_user_is_not_in_the_log_of_the_admin(
    name: str, server: EmbeddedServer
) -> None:
    lock(name).acquire()
    list(release_shown([shown(name)], by="cron"))
    assert not LogEntry.objects.exists()
    assert locks["default"].history(name)[0].by == "cron"


@pytest.mark.django_db
def test_failing_log_of_the_admin_spoils_nothing(
    name: str, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock is released though the database refuses the entry, and the transaction goes on."""
    user = get_user_model()(pk=999, username="gone")  # a row that is not there
    lock(name).acquire()
    before = shown(name)
    with transaction.atomic():
        with connection.execute_wrapper(_refuse_inserts):
            assert log_releases(user, [before], "") == "no"
        assert not LogEntry.objects.exists()
    assert "are not in the admin's log" in caplog.text


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({}, "no such table: auth_user"),
        ({"NAME": "/nowhere/at/all"}, "unable to open database file"),
        ({"ENGINE": "django.db.backends.dummy"}, ""),  # a project without a database has no log
    ],
)
def test_users_that_can_not_be_read_are_told_of(
    name: str,
    tmp_path: Path,
    settings: Any,
    entry: dict[str, Any],
    told: str,
    django_db_blocker: Any,
) -> None:
    """Who can't be looked up has no entry, and the outcome says so; each lock is released."""
    settings.DATABASE_ROUTERS = [_ToFile()]
    whole = {"NAME": str(tmp_path / "db.sqlite3"), **entry}
    connections.settings["file"] = {**connections.settings["default"], **whole}
    names = [f"{name}:1", f"{name}:2"]
    for one in names:
        lock(one).acquire()
    with django_db_blocker.unblock():
        outcomes = list(release_shown([shown(one) for one in names], by="ada", user="ada"))
    del connections.settings["file"]
    assert [item.result for item in outcomes] == [Result.RELEASED] * 2
    assert [item.unlogged for item in outcomes] == [told] * 2


@pytest.fixture
def database(tmp_path: Path, settings: Any, django_db_blocker: Any) -> Iterator[sqlite3.Connection]:
    """A file with the tables of the admin's log and a user; a connection of somebody else's."""
    settings.DATABASE_ROUTERS = [_ToFile()]
    file = str(tmp_path / "db.sqlite3")
    entry = {"NAME": file, "OPTIONS": {"timeout": 60}}
    with django_db_blocker.unblock(), aliases({"file": entry}):
        with connections["file"].schema_editor() as editor:
            for model in (ContentType, get_user_model(), LogEntry):
                editor.create_model(model)
        get_user_model().objects.create(pk=1, username="ada")
        ContentType.objects.get_for_model(HeldLock)
        other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        yield other
        other.close()
        eventually(_is_through)
        ContentType.objects.clear_cache()


@pytest.mark.parametrize(
    "user", ["ada", get_user_model()(pk=1, username="ada")], ids=["name", "object"]
)
def test_database_that_hangs_delays_no_release(
    name: str,
    server: EmbeddedServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    database: sqlite3.Connection,
    user: Any,
) -> None:
    """Both locks are free before it is asked, it is waited for once, and the outcome says so."""
    monkeypatch.setattr("django_redis_lock.operators.adminlog.DATABASE_TIMEOUT", 0.2)
    names = [f"{name}:1", f"{name}:2"]
    settings.DATABASE_ROUTERS = [router := _ToFile(names)]
    for one in names:
        lock(one).acquire()
    database.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    outcomes = release_shown([shown(one) for one in names], by="ada", user=user)
    assert time.monotonic() - began < 5  # and not a minute for each
    assert [item.result for item in outcomes] == [Result.RELEASED] * 2
    assert "did not answer within 0.2 s" in outcomes[0].unlogged == outcomes[1].unlogged
    assert caplog.text.count("did not answer within") == 1
    assert router.held
    assert not any(router.held)
    database.execute("ROLLBACK")
    eventually(_is_through)
    assert not LogEntry.objects.exists()  # as was said


def test_entry_that_is_not_confirmed_may_come(
    name: str,
    server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    database: sqlite3.Connection,
) -> None:
    """Where the database hangs in the commit, it is not said that there is no entry."""
    monkeypatch.setattr("django_redis_lock.operators.adminlog.DATABASE_TIMEOUT", 0.2)
    lock(name).acquire()
    database.execute("BEGIN")
    database.execute("SELECT * FROM auth_user")  # one who reads lets others write, not commit
    (outcome,) = release_shown([shown(name)], by="ada", user="ada")
    assert "did not confirm" in outcome.unlogged
    database.execute("ROLLBACK")
    eventually(LogEntry.objects.exists)


def test_transaction_of_the_caller_has_the_entries(
    name: str, server: EmbeddedServer, database: sqlite3.Connection
) -> None:
    """Another connection might wait for its end; all locks are free before it is asked."""
    names = [f"{name}:1", f"{name}:2"]
    for one in names:
        lock(one).acquire()
    found = []

    def look(execute: Any, sql: str, *args: Any) -> Any:
        found.extend(locks["default"].holder(one) for one in names)
        return execute(sql, *args)

    user = get_user_model().objects.get()
    with transaction.atomic("file"), connections["file"].execute_wrapper(look):
        release_shown([shown(one) for one in names], by="ada", user=user)
        assert LogEntry.objects.count() == 2
        transaction.set_rollback(True, using="file")
    assert not LogEntry.objects.exists()
    assert found
    assert not any(found)


def test_what_was_released_before_an_interruption_is_in_the_log(
    name: str, server: EmbeddedServer, database: sqlite3.Connection
) -> None:
    """Ctrl-C between two locks: the first is released, and the log tells of it."""
    lock(name).acquire()

    class Interrupted:
        using = name = "default"

        @property
        def token_id(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release_shown([shown(name), Interrupted()], by="ada", user="ada")
    assert LogEntry.objects.get().object_repr == name


def _is_through() -> bool:
    return "django-redis-lock-admin-log" not in [one.name for one in threading.enumerate()]


class _ToFile:
    """A router that has users and the admin's log in a file, and sees who holds what then."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = names
        self.held: list[Holder | None] = []

    def db_for_read(self, model: Any, **hints: Any) -> str:
        self.held += [locks["default"].holder(name) for name in self._names]
        return "file"

    db_for_write = db_for_read


def test_reason_is_asked_for_where_the_settings_want_one(
    name: str, server: EmbeddedServer, settings: Any
) -> None:
    """The error comes with the call and names the alias; Python itself may go without."""
    operators = {"OPERATORS": {"REASON_REQUIRED": True}}
    settings.LOCKS = {
        "default": {"LOCATION": server.url()},
        "strict": {"LOCATION": server.url(), **operators},
    }
    held = lock(name)
    held.acquire()
    both = [shown(name), shown(name, "strict")]
    for reason in ("", " \n"):
        with pytest.raises(ValueError, match=r"LOCKS\['strict'\].*REASON_REQUIRED"):
            release_shown(iter(both), by="ada", reason=reason)
    held.ensure_held()
    (outcome,) = release_shown(both[:1], by="ada")
    assert outcome.result is Result.RELEASED
    lock(name).acquire()
    (outcome,) = release_shown(iter([shown(name, "strict")]), by="ada", reason="stuck")
    assert outcome.result is Result.RELEASED
    lock(name).acquire()
    assert locks["strict"].force_release(name)


def _refuse_inserts(execute: Any, sql: str, *args: Any) -> Any:
    if sql.startswith("INSERT"):
        raise RuntimeError("no")
    return execute(sql, *args)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://ada:secret@host:6379/1 down", "redis://***@host:6379/1 down"),
        ("rediss://:p@ss@host/1", "rediss://***@host/1"),
        ("unix:///run/a.sock?db=1&password=secret&x=1", "unix:///run/a.sock?db=1&password=***&x=1"),
        ("redis://host?username=ada", "redis://host?username=***"),
        ("mail ada@example.org", "mail ada@example.org"),
    ],
)
def test_passwords_are_not_shown(text: str, clean: str) -> None:
    """Neither the user nor the password of a URL is in a message."""
    assert without_passwords(text) == clean


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ключ 🔒", "plain ключ 🔒"),
        ("\x1b[31m\r\n\x9b", "\\x1b[31m\\r\\n\\x9b"),
        ("a\u202eb\u200b", "a\\u202eb\\u200b"),
    ],
)
def test_what_can_not_be_seen_is_made_visible(text: str, seen: str) -> None:
    """Control characters and turns of the direction of writing are shown, not obeyed."""
    assert visible(text) == seen
