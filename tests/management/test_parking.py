"""``manage.py locks`` about parked tasks: where they show, and how they go back to the broker."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from io import StringIO
from typing import Any
from unittest.mock import patch

import pytest
import redis
from kombu import Connection

from django_redis_lock import locks
from django_redis_lock.celery.options import Guard
from django_redis_lock.celery.outbox import outbox_of
from django_redis_lock.management import showing
from tests.tools.console import command, read
from tests.tools.parking import Parking, parking

pytestmark = pytest.mark.timeout(60)
LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
NONE = {"parked": 0, "put_off": 0}


@pytest.fixture
def parked(settings: Any, name: str) -> Iterator[Parking]:
    settings.LOCKS = {**settings.LOCKS, "locmem": {"BACKEND": LOCMEM}}
    with parking(name) as made:
        yield made


def test_tasks_that_are_parked_without_a_holder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "WAITERS", 1)
    with parking(name, hold=False) as parked:
        parked.park(2)
        assert "... and 1 more, 2 in all" in command("show", name).lines
        locks["default"].set_limit(name, 0)
        paused = "  Not held; semaphores of this name are paused: 2 waiting (2 of them parked)."
        assert paused in command("show", name).lines
        locks["default"].set_limit(name, None)
        told = f"{name!r}: not held, 2 waiting (2 of them parked)"
        assert command("list").err.splitlines() == [told, "No locks are held."]
        answer = json.loads(command("list", "--format", "json").out)
        row = {"name": name, "using": "default", "waiters": 2, "parked": 2}
        assert (answer["limits"], answer["queues"]) == ([], [{**row, "held": 0, "limit": None}])


def test_parked_tasks_go_back_to_the_broker(parked: Parking, name: str) -> None:
    first, *others = parked.park(3)
    assert command("unpark", f"{name}!", "--task-id", first).code == 3
    done = command("unpark", name, "--task-id", first)
    assert (done.code, "\n" in done.err.strip()) == (0, False)
    assert done.out == f"{name} (alias default): 1 parked task sent back to the broker\n"
    assert parked.returned() == [first]
    done = command("unpark", name, "--using", "default", "--format", "json")
    assert read(done, "locks") == [{"name": name, "using": "default", "unparked": 2, **NONE}]
    assert parked.returned() == others
    done = command("unpark", name)
    assert (done.code, done.out) == (3, "")
    assert done.err.endswith(f"No task is parked for {name!r}.")
    assert command("unpark", name, "--task-id", first).code == 3


def test_tasks_of_another_broker_stay(parked: Parking, name: str, no_workers: None) -> None:
    parked.park(2)
    done = command("unpark", name)
    assert (done.code, done.out) == (3, "")
    for words in ("skipped 2 parked tasks of another broker", "No task of this broker"):
        assert words in done.err
    assert "2  task" in command("show", name).out


def test_broker_that_can_not_be_reached(
    parked: Parking, name: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks leave the queue all the same, and a worker sends them later."""
    parked.park(2)
    nowhere = Connection("redis://:secret@127.0.0.1:1/0")
    app = parked.consumer.app
    app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0}
    with monkeypatch.context() as patched:
        patched.setattr(app, "connection_for_write", lambda: nowhere)
        done = command("unpark", name)
    assert (done.code, done.out, "secret" in done.err) == (2, "", False)
    assert f"2 parked tasks of {name!r} left the queue, but the broker can't be reached" in done.err
    assert locks["default"].waiting(name) == []
    assert client.zcard(f"lock-parked:{outbox_of(app)}:outbox") == 2


def test_what_is_not_parked(parked: Parking) -> None:
    for words, code, told in (
        (["x", "--using", "locmem"], 2, "LOCKS['locmem'] can't park tasks: only"),
        (["a\nb"], 2, "control characters"),
        (["rend*"], 3, "For a pattern, use: locks list 'rend*'"),
        (["x", "--aside"], 3, "No message of 'x' is set aside"),
    ):
        done = command("unpark", *words)
        assert (done.code, told in done.err) == (code, True), done


def test_without_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "celery.app", raising=False)
    done = command("unpark", "x")
    assert (done.code, "No Celery app is loaded" in done.err) == (1, True)


def test_parked_tasks_are_shown_in_order_with_their_turns(
    parked: Parking, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = ["", "b%20%1B", "", *map(str, range(70))]
    monkeypatch.setattr(Guard, "turn", lambda *_: f"={turns.pop(0)}")
    ids = parked.park(73)
    lines = command("show", name).lines
    at = lines.index("Backlogs, the next turn first")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["TURN", "PARKED"],
        ["-", "2"],
        ["b", r"\x1b", "1"],
    ]
    assert lines[-1] == "... and 8 more, 72 in all"
    (known,) = read(command("show", name, "--format", "json"), "locks")
    shown = [(one["task_id"], one["parked"]) for one in known["waiting"]]
    assert shown == [(task_id, True) for task_id in ids]
    column = next(line for line in lines if "WAITED" in line).index("PARKED")
    row = next(line for line in lines if line.lstrip().startswith("1  "))
    assert (f"body[{ids[0]}]" in row, row[column:].split()[0]) == (True, "yes")
    outbox = outbox_of(parked.consumer.app)
    assert (known["waiters"], known["backlogs"]["number"]) == (73, 72)
    assert known["backlogs"]["turns"][1] == {"outbox": outbox, "turn": "b \x1b", "parked": 1}


@pytest.mark.parametrize(
    ("words", "code", "told", "left"),
    [
        ("--aside", 1, "2 parked tasks could not be sent: it is not a signed text", 2),
        ("other --aside", 3, "No message of 'other' is set aside.", 2),
        ("--aside --delete", 1, "Declined: nothing was deleted", 2),
        ("{name} --aside --delete --noinput", 0, "", 0),
    ],
)
def test_messages_that_were_set_aside(
    parked: Parking, client: redis.Redis, name: str, words: str, code: int, told: str, left: int
) -> None:
    parked.park(2)
    key = f"lock-parked:{outbox_of(parked.consumer.app)}::{name}"
    client.hset(key, mapping=dict.fromkeys(client.hkeys(key), "no message"))
    done = command("unpark", name)
    assert (done.code, done.out) == (1, "")
    shown = command("show", name).lines
    assert "Set aside: 2 parked messages that no worker could read" in shown
    assert sum(line.endswith("it is not a signed text") for line in shown) == 2
    with patch("sys.stdin", StringIO("no\n")):
        done = command("unpark", *words.format(name=name).split())
    assert (done.code, told in done.err) == (code, True)
    assert ("AT (UTC)" in done.out) is told.startswith("Declined")  # shown before it asks
    (known,) = read(command("show", name, "--format", "json"), "locks")
    assert len(known["aside"]) == left


def test_messages_that_can_be_read_again_are_published(
    parked: Parking, name: str, settings: Any
) -> None:
    ids, key = parked.park(2), settings.SECRET_KEY
    settings.SECRET_KEY = "another"
    with patch("django_redis_lock.celery.outbox.UNREAD_ASIDE", 0):
        assert "signed with another SECRET_KEY" in command("unpark", name).err
    settings.SECRET_KEY = key
    done = command("unpark", name, "--aside", "--using", "default", "--format", "json")
    assert read(done, "locks") == [{"name": name, "using": "default", "restored": 2, **NONE}]
    assert sorted(parked.returned()) == sorted(ids)


def test_due_messages_are_sent_with_the_limits_of_today(name: str) -> None:
    """As by a cron job, where no worker runs."""
    limit = [0]
    with parking(name, hold=False, concurrency=lambda **_: limit[0]) as parked:
        ids = parked.park(3)
        done = command("unpark", "--due")
        assert (done.code, done.out, done.err) == (0, "", "No parked task is due.\n")
        limit[0] = 2
        assert command("unpark", "--due").out == "all locks: 2 parked tasks sent to the broker\n"
        assert parked.returned() == ids[:2]
        holders = list(locks["default"].holders_of([name]))
        locks["default"].force_release(name, holders[0].token_id)
        done = command("unpark", "--due", "--format", "json")
        assert read(done, "locks") == [{"name": None, "using": "default", "due": 1, **NONE}]
        assert parked.returned() == ids[2:]


def test_after_a_purge_the_next_task_runs(parked: Parking, name: str) -> None:
    """A lock is held for a message that was purged, until it is released by force."""
    ids = parked.park(2)
    parked.lock.release()
    command("unpark", "--due")
    parked.returned()  # the purge
    err = command("unpark", name, "--task-id", "unknown").err
    found = re.search(
        rf"{name}: reserved for 1 message .*{ids[0][:8]}.* use: locks (release .*)", err
    )
    assert found, err
    assert command(*found[1].split(), "--noinput").code == 0
    assert command("unpark", "--due").out.endswith(": 1 parked task sent to the broker\n")
    assert parked.returned() == ids[1:]


def test_tasks_are_imported_before_messages_are_read(
    parked: Parking, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project imports its tasks in workers alone."""
    ids = parked.park()
    app, task = parked.consumer.app, parked.consumer.app.tasks.pop(parked.task.name)
    monkeypatch.setattr(app.loader, "import_default_modules", lambda: app.tasks.register(task))
    assert command("unpark", name).code == 0
    assert parked.returned() == ids
