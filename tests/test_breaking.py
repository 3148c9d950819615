"""Releasing exactly what was shown: what becomes of each lock, and where it is written."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction

from django_redis_lock import Holder, lock, locks
from django_redis_lock.adminlog import AdminLog
from django_redis_lock.breaking import Result, release_shown
from django_redis_lock.exceptions import LockLost
from django_redis_lock.models import HeldLock
from django_redis_lock.text import visible, without_passwords
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters


@dataclass(frozen=True)
class Ticket:
    """All that has to be known of a hold that was shown."""

    using: str
    name: str
    token_id: str


def shown(name: str, using: str = "default") -> Holder:
    """Return who is seen to hold a lock."""
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
    monkeypatch.setattr("django_redis_lock.protocol.RETRY_PAUSES", ())
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
    """An entry there belongs to a user, so without one the audit and the log have to do."""
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
            assert AdminLog(user).write(before, "") == "no"
        assert not LogEntry.objects.exists()
    assert "is not in the admin's log" in caplog.text


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


def test_database_that_hangs_delays_no_release(
    name: str,
    server: EmbeddedServer,
    tmp_path: Path,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    django_db_blocker: Any,
) -> None:
    """Both locks are free before it is asked, it is waited for once, and the outcome says so."""
    monkeypatch.setattr("django_redis_lock.adminlog.PATIENCE", 0.2)
    settings.DATABASE_ROUTERS = [_ToFile()]
    entry = {"NAME": str(tmp_path / "db.sqlite3"), "OPTIONS": {"timeout": 60}}
    connections.settings["file"] = {**connections.settings["default"], **entry}
    names = [f"{name}:1", f"{name}:2"]
    for one in names:
        lock(one).acquire()
    before = threading.active_count()
    other = sqlite3.connect(tmp_path / "db.sqlite3")
    other.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    with django_db_blocker.unblock():
        outcomes = list(release_shown([shown(one) for one in names], by="ada", user="ada"))
        assert time.monotonic() - began < 5  # and not a minute for each
        other.close()
        eventually(lambda: threading.active_count() <= before)
    assert [item.result for item in outcomes] == [Result.RELEASED] * 2
    assert "did not answer within 0.2 s" in outcomes[0].unlogged == outcomes[1].unlogged
    assert caplog.text.count("did not answer within") == 1
    assert [locks["default"].holder(one) for one in names] == [None, None]
    del connections.settings["file"]


class _ToFile:
    """A router that has users and the admin's log in a file."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
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
