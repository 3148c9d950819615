"""``manage.py locks``: what it lists, shows and releases, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.core.management import call_command

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from django_redis_lock.management import console
from django_redis_lock.management.commands.locks import Command
from django_redis_lock.management.console import arguments
from django_redis_lock.management.console.durations import duration, parse_duration
from django_redis_lock.management.console.releasing import system_user
from django_redis_lock.management.console.selection import NOTHING, USAGE
from django_redis_lock.management.console.terminal import SCHEMA, Terminal
from django_redis_lock.protocol.calls import Inspect
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters
from tests.tools.console import Done, command, environment, program
from tests.tools.console import arguments as program_arguments
from tests.tools.docs import DOCS, table

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.fixture
def one(server: EmbeddedServer, settings: Any, db: None) -> EmbeddedServer:
    """One alias, on the session's server."""
    settings.LOCKS = {"default": {"LOCATION": server.url()}}
    return server


def held(name: str, timeout: float = 60, **options: Any) -> Any:
    """Return a handle that holds a lock."""
    handle = lock(name, timeout, **options)
    assert handle.acquire(blocking=False)
    return handle


def read(done: Done, name: str) -> Any:
    """Return what is under a name in an output of JSON."""
    answer = json.loads(done.out)
    assert answer["schema"] == SCHEMA
    assert answer["not_known"] == []
    return answer[name]


def listed(done: Done) -> list[str]:
    """Return the names in a table."""
    return [line.split("  ")[0] for line in done.lines[1:]]


# list


def test_list_tells_who_holds_what(one: EmbeddedServer) -> None:
    """A line for each lock: its name, holder, times, waiters and fence."""
    first, second = held("product:1"), held("product:2", 90)
    waiting = Background(lambda: lock("product:1").acquire(blocking_timeout=20))
    eventually(lambda: waiters("product:1"))
    for done in (command(), command("list"), command("list", "product:*"), command("prod*")):
        assert done.code == 0
        assert done.err == ""
        heading, *rows = done.lines
        assert heading.split() == [
            *["NAME", "HOLDER", "HELD", "FOR", "LEASE", "LEFT"],
            *["WAITERS", "ATTENTION", "FENCE"],
        ]
        assert [row.split()[0] for row in rows] == ["product:2", "product:1"]
        assert f"{os.getpid()} (MainThread)" in rows[0]
        assert rows[0].split()[-3:] == ["0", "-", str(second.fence)]
        assert rows[1].split()[-3:] == ["1", "-", str(first.fence)]
        assert "\x1b" not in done.out
    first.release()
    assert waiting.outcome() is True


def test_list_of_nothing(one: EmbeddedServer) -> None:
    """No lock at all is no error; a selection that matches none is, and says so."""
    assert command() == Done(0, "", "No locks are held.\n")
    held("product:1")
    done = command("list", "import:*")
    assert (done.code, done.out) == (3, "")
    assert done.err == "No held lock matches 'import:*'."
    done = command("list", "--older-than", "1h30m", "--format", "json")
    assert (done.code, read(done, "locks")) == (3, [])
    assert done.err == "No lock has been held for at least 1h30m."
    done = command("list", "p*", "--older-than", "15m", "--attention", "--queued")
    assert done.err == (
        "No held lock matches 'p*', has been held for at least 15m, needs attention and is held "
        "for a message in a Celery queue."
    )


def test_list_is_sorted_limited_and_selected_by_age(one: EmbeddedServer) -> None:
    """``--sort``, ``--reverse``, ``--limit`` and ``--older-than`` do what they say."""
    for name, timeout in (("b", 30), ("a", 20), ("c", 10)):
        held(name, timeout)
    waiting = Background(lambda: lock("a").acquire(blocking_timeout=20))
    eventually(lambda: waiters("a"))
    assert listed(command("list")) == ["b", "a", "c"]
    assert listed(command("list", "--reverse")) == ["c", "a", "b"]
    assert listed(command("list", "--limit", "2")) == ["b", "a"]
    orders = {
        "name": "abc",
        "held": "bac",
        "lease": "cab",
        "waiters": "a",
        "fence": "cab",
        "holder": "",
    }
    assert set(orders) == set(arguments.SORTS)
    for sort, order in orders.items():
        assert "".join(listed(command("list", "--sort", sort))).startswith(order), sort
    assert listed(command("list", "--sort", "name", "--reverse", "--limit", "1")) == ["c"]
    eventually(lambda: locks["default"].holder("c").held_for > 0.2)
    assert sorted(listed(command("list", "--older-than", "0.2s"))) == ["a", "b", "c"]
    assert command("list", "--older-than", "1m").code == 3
    locks["default"].force_release("a")
    assert waiting.outcome() is True


def test_list_as_json(one: EmbeddedServer) -> None:
    """JSON tells everything, alone on standard output, a lock a line."""
    handle = held("endless", None, metadata={"shop": "7\x1b"})
    held("product:1", 60)
    done = command("list", "--json")
    assert (done.code, done.err) == (0, "")
    assert command("list", "--format", "json").lines[0] == done.lines[0]
    endless, product = read(done, "locks")
    assert len(done.lines) == 4
    assert endless["metadata"] == {"shop": "7\x1b"}
    assert "\x1b" not in done.out
    assert (endless["lease_left"], endless["expires_at"]) == (None, None)
    assert (endless["name"], endless["using"]) == ("endless", "default")
    assert endless["fence"] == handle.fence
    assert endless["pid"] == os.getpid()
    assert 59 < product["lease_left"] <= 60
    assert 0 <= product["held_for"] < 10
    assert product["acquired_at"] < product["expires_at"]


def test_several_backends_are_told_apart(server: EmbeddedServer) -> None:
    """With more than one alias each lock's is named; ``--using`` chooses one."""
    handles = [lock("a", 60, using=using) for using in ("default", "url", "locmem", "dummy")]
    for handle in handles:
        handle.acquire()
    done = command()
    assert done.lines[0].split()[1] == "USING"
    assert sorted(line.split()[1] for line in done.lines[1:]) == ["default", "locmem", "url"]
    assert listed(command("list", "--using", "url")) == ["a"]
    done = command("list", "--using", "nowhere")
    assert done.code == 2
    assert "no alias 'nowhere'" in done.err


def test_control_characters_are_escaped(one: EmbeddedServer, client: redis.Redis) -> None:
    """Control characters in names, records and reasons are escaped."""
    record = json.dumps(
        {"host": "h\x1b[2J\n", "pid": 1, "thread": "\x9b1m", "metadata": {"\r": "\x07"}}
    )
    client.set("lock:a\u202eb", f"token 1700000000000000 {record}", px=60_000)
    client.zadd("lock-index", {"a\u202eb": 9e15})
    client.set("lock:evil", "x\x1b[2J y z", px=60_000)
    shown = [command(), command("show", "a\u202eb"), command("show", "evil")]
    shown.append(command("release", "a\u202eb", "--noinput", "--reason", "\x1b[31mred"))
    shown += [command("history"), command("show", "a\u202eb")]
    for done in shown:
        text = (done.out + done.err).replace("\n", "")
        assert text.isprintable(), repr(text)
    assert "a\\u202eb" in shown[0].out
    assert "\\x1b[31mred" in shown[4].out


class _Watched(StringIO):
    """Notes how many pages of locks were read when each piece of output was written."""

    def __init__(self, pages: list[int]) -> None:
        super().__init__()
        self._pages = pages
        self.written_after: list[int] = []

    def write(self, text: str) -> int:
        self.written_after.append(len(self._pages))
        return super().write(text)


@pytest.fixture
def ten_thousand(one: EmbeddedServer) -> list[Any]:
    """Held locks, each with a record of its own."""
    return [held(f"product:{number}", metadata={"n": str(number)}) for number in range(10_000)]


@pytest.mark.usefixtures("ten_thousand")
@pytest.mark.timed
def test_ten_thousand_locks_are_listed_within_a_second() -> None:
    """The best of three takes less than a second of the processor's time, and all are there."""
    for words in ([], ["--format", "json"], ["--sort", "held"]):
        took = []
        for _ in range(3):
            began = time.process_time()
            done = command("list", *words)
            took.append(time.process_time() - began)
            assert done.code == 0
            assert len(done.lines) == 10_000 + (2 if words[:1] == ["--format"] else 1)
            if took[-1] < 1:
                break
        assert min(took) < 1, (words, took)


@pytest.mark.parametrize("words", [["--format", "json"], ["--format", "table"]])
def test_list_is_written_as_it_is_read(
    ten_thousand: list[Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first locks are written before the last are read, a page at a time."""
    pages: list[int] = []
    backend = locks["default"]
    read = backend.call

    def counted(call: Any) -> Any:
        if isinstance(call, Inspect):
            pages.append(len(call.names))
        return read(call)

    monkeypatch.setattr(backend, "call", counted)
    out = _Watched(pages)
    call_command("locks", "list", *words, stdout=out)
    assert len(pages) == 20
    assert out.written_after[0] <= 2
    assert set(range(2, 21)) <= set(out.written_after)


# show


def test_show_tells_everything(one: EmbeddedServer) -> None:
    """The holder with all its fields, the queue in order, and the history."""
    before = held("product:1")
    locks["default"].force_release("product:1", by="ada", reason="stuck")
    assert before.owned() is False
    first = held("product:1", 60, metadata={"shop": "7"})
    waiting = []
    for number in range(2):
        waiting.append(Background(lambda: lock("product:1", 7).acquire(blocking_timeout=20)))
        eventually(lambda number=number: waiters("product:1") == number + 1)
    done = command("show", "product:1")
    assert done.code == 0
    for words in (
        "product:1 (backend default)",
        f"pid         {os.getpid()}",
        "life        alive: its process lives",
        "thread      MainThread",
        f"fence       {first.fence}",
        "waiters     2",
        "metadata    shop = 7",
        "Queue, in order of arrival",
        "History, newest first",
        "ada",
        "stuck",
    ):
        assert words in done.out, words
    rows = [line for line in done.lines if line.startswith(("1  ", "2  "))]
    assert [waiting[0].name in rows[0], waiting[1].name in rows[1]] == [True, True]
    assert all("7.0s" in row for row in rows)
    (known,) = read(command("show", "product:1", "--format", "json"), "locks")
    assert known["holder"]["fence"] == first.fence
    assert [item["thread"] for item in known["waiting"]] == [item.name for item in waiting]
    assert [item["lease"] for item in known["waiting"]] == [7.0, 7.0]
    assert all(item["waited"] >= 0 and item["since"] for item in known["waiting"])
    assert [item["event"] for item in known["history"]] == ["force_released"]
    first.release()
    for item in waiting:
        locks["default"].force_release("product:1")
        assert item.outcome() is True


def test_a_lock_is_shown_that_is_not_renewed_for_ever(one: EmbeddedServer) -> None:
    """Its last lease runs down, which is as it should be."""
    limited = lock("limited")
    limited._max_hold = 3
    with limited:
        done = command("show", "limited")
        assert re.search(r"lease left  \S+, renewed until held for 3s\n", done.out)
        (known,) = read(command("show", "limited", "--json"), "locks")
    assert known["holder"]["max_hold"] == 3
    assert known["holder"]["attention"] is None


def test_show_of_a_free_lock(one: EmbeddedServer) -> None:
    """The exit code is 3; its history is shown all the same."""
    done = command("show", "product:1")
    assert (done.code, done.out, done.err) == (3, "", "Lock 'product:1' is not held.")
    held("product:1")
    locks["default"].force_release("product:1", by="ada")
    done = command("show", "product:1")
    assert done.code == 3
    assert "ada" in done.out
    assert command("show", "a\nb").code == 2


# release


def test_release_shows_asks_and_releases(
    one: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a yes, exactly the shown locks are released; the audit has operator and reason."""
    first, second, other = held("product:1"), held("product:2"), held("import:1")
    asked = []

    def confirm(self: Terminal, question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(Terminal, "confirm", confirm)
    done = command("release", "--pattern", "product:*", "--reason", "it hangs")
    assert done.code == 0
    assert len(asked) == 1
    assert "2 locks" in asked[0]
    assert sorted(done.lines[-2:]) == ["product:1: released", "product:2: released"]
    for handle in (first, second):
        with pytest.raises(LockLost):
            handle.ensure_held()
    other.ensure_held()
    for entry in locks["default"].history():
        if entry.event == "force_released":
            assert (entry.by, entry.reason) == (system_user(), "it hangs")


@pytest.mark.parametrize("answer", ["", "n\n", "no\n", "\n", "yess\n"])
def test_release_declined_releases_nothing(server: EmbeddedServer, answer: str) -> None:
    """Any other answer, or no input, declines: exit code 1."""
    handle = held("product:1")
    done = program("release", "product:1", "--using", "default", answer=answer)
    assert done.code == 1
    assert "Declined: nothing was released" in done.err
    assert "Release 1 lock? The holders are not stopped. [y/N]" in done.err
    assert "product:1" in done.out
    handle.ensure_held()


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "YES\n"])
def test_release_agreed_to(server: EmbeddedServer, answer: str) -> None:
    """A yes from the standard input releases."""
    handle = held("product:1")
    done = program("release", "product:1", "--using", "default", "--format", "json", answer=answer)
    assert done.code == 0
    assert read(done, "outcomes")[0]["result"] == "released"
    assert "product:1: " in done.err  # what was asked about
    assert not handle.owned()


def test_release_keeps_new_holders(one: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that was not shown keeps its lock and is named; the exit code is 3."""
    handles = {name: held(name) for name in ("a", "b", "c")}
    successors = []

    def confirm(self: Terminal, question: str) -> bool:
        handles["a"].release()
        successors.append(held("a"))
        handles["b"].release()
        return True

    monkeypatch.setattr(Terminal, "confirm", confirm)
    done = command("release", "a", "b", "c")
    assert done.code == 3
    assert "a: kept, because the holder changed to " in done.out
    assert f"{os.getpid()} (MainThread)\n" in done.out
    assert "b: already free" in done.out
    assert "c: released" in done.out
    assert done.err == "1 of 3 locks released; 2 had changed."
    successors[0].ensure_held()
    monkeypatch.undo()
    token_id = locks["default"].holder("a").token_id
    done = command("release", "a", "--token-id", "0" * 16, "--noinput")
    assert done.code == 3
    assert "Lock 'a' is not held with token id 0000000000000000." in done.err
    successors[0].ensure_held()
    assert command("release", "a", "--token-id", token_id, "--noinput").code == 0
    assert not successors[0].owned()


def test_release_hands_off(one: EmbeddedServer) -> None:
    """The next waiter gets the lock, and is named."""
    held("a")
    heir = lock("a", 60)
    waiting = Background(heir.acquire)
    eventually(lambda: waiters("a"))
    done = command("release", "a", "--noinput", "--format", "json")
    assert waiting.outcome() is True
    (outcome,) = read(done, "outcomes")
    assert outcome["result"] == "released"
    assert waiting.name in outcome["holder_now"]
    heir.release()


def test_release_of_what_is_not_held(one: EmbeddedServer) -> None:
    """The exit code is 3; held locks are released all the same."""
    assert command("release", "--all", "--noinput").code == 3
    done = command("release", "--all", "--noinput", "--format", "json")
    assert (done.code, read(done, "outcomes")) == (3, [])
    handle = held("a")
    done = command("release", "nobody", "a", "--noinput")
    assert done.code == 3
    assert "Lock 'nobody' is not held." in done.err
    assert not handle.owned()


def test_dry_run_releases_nothing(one: EmbeddedServer) -> None:
    """``--dry-run`` shows and stops, without a question."""
    handle = held("a")
    done = command("release", "--all", "--dry-run")
    assert done.code == 0
    assert listed(done) == ["a"]
    assert "1 lock would be released" in done.err
    (shown,) = read(command("release", "a", "--dry-run", "--format", "json"), "locks")
    assert shown["fence"] == handle.fence
    assert command("release", "a", "b", "--dry-run").code == 3
    handle.ensure_held()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Specify what to release"),
        (["a", "--all"], "one of them"),
        (["--all", "--pattern", "*"], "one of them"),
        (["a", "b", "--token-id", "0"], "exactly one name"),
        (["--all", "--token-id", "0"], "exactly one name"),
        (["a", "--reason", "x" * 501], "--reason has at most 500 characters"),
        (["a\nb"], "control characters"),
    ],
)
def test_senseless_releases_are_refused(one: EmbeddedServer, words: list[str], told: str) -> None:
    """Wrong usage is exit code 2, explains the usage, and releases nothing."""
    handle = held("a")
    done = command("release", *words, "--noinput")
    assert done.code == 2
    assert told in done.err
    handle.ensure_held()


@pytest.mark.django_db(transaction=True)  # it is written on another connection
def test_release_is_in_the_log_of_the_admin_under_the_users_name(one: EmbeddedServer) -> None:
    """Where a user of Django's has the system user's name, the admin's log has an entry."""
    held("a")
    command("release", "a", "--noinput")
    assert not LogEntry.objects.exists()
    user = get_user_model().objects.create(username=system_user())
    held("a")
    command("release", "a", "--noinput", "--reason", "stuck")
    (entry,) = LogEntry.objects.all()
    assert (entry.user, entry.object_repr) == (user, "a")
    assert "stuck" in entry.get_change_message()


# history


def test_history_tells_of_releases_and_losses(one: EmbeddedServer) -> None:
    """Newest first, by name, as JSON; a notice if there are no events."""
    assert command("history") == Done(0, "", "The audit has no forced releases or freed locks.\n")
    handle = held("a")
    locks["default"].force_release("a", by="ada", reason="it hangs")
    assert not handle.owned()
    held("b")
    locks["default"].force_release("b", by="bob")
    rows = command("history").lines[1:]
    told = sorted(rows, key=lambda row: row.split()[2:])  # two may be of one millisecond
    assert [row.split()[2:4] for row in told] == [
        ["force_released", "a"],
        ["force_released", "b"],
    ]
    assert re.search("ada .* *it hangs", told[0])
    assert "bob" in told[1]
    assert len(command("history", "--limit", "2").lines) == 3
    events = read(command("history", "a", "--format", "json"), "events")
    assert [event["event"] for event in events] == ["force_released"]
    assert events[0]["by"] == "ada"
    done = command("history", "c")
    assert (done.code, done.err) == (3, "The audit has no events of 'c'.")


def test_histories_of_several_backends_are_one(server: EmbeddedServer) -> None:
    """Events of all aliases are put in the order of their time."""
    for using in ("url", "default", "locmem", "url"):
        lock("a", 60, using=using).acquire()
        locks[using].force_release("a", by=using)
    events = read(command("history", "--format", "json"), "events")
    assert len(events) == 4
    assert [event["at"] for event in events] == sorted((e["at"] for e in events), reverse=True)


# Misconfiguration, and a server that is down.


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--format", "json"],
        ["show", "a"],
        ["release", "a", "--noinput"],
        ["release", "--all", "--noinput", "--format", "json"],
        ["history"],
        ["doctor"],
        ["doctor", "--format", "json"],
    ],
)
def test_server_that_is_down_is_a_line(
    words: list[str], settings: Any, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, no traceback, no password; JSON stays valid.

    A lock that could not be read is never called free. With ``doctor`` it is exit code 1.
    """
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    settings.LOCKS = {
        "default": {"LOCATION": "redis://ada:secret@127.0.0.1:1/0"},
        "up": {"BACKEND": "django_redis_lock.backends.locmem.LocMemLockBackend"},
    }
    lock("a", 60, using="up").acquire()
    done = command(*words)
    locks.reset()
    assert done.code == (1 if words[0] == "doctor" else 2)
    assert "127.0.0.1:1" in done.out + done.err
    assert "secret" not in done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert not re.search("is not held|No lock|othing", done.out + done.err)
    if words[0] == "doctor":
        return
    assert "locks of 'default' are not known" in done.err
    if "json" in words:
        (silent,) = json.loads(done.out)["not_known"]
        assert silent["using"] == "default"
        assert "127.0.0.1:1" in silent["error"]
    elif words[0] in ("list", "show"):
        assert "a" in done.out  # the other backend is shown


@pytest.mark.parametrize(
    ("configured", "told"),
    [
        ({"default": {"BACKEND": "nowhere.Backend"}}, "can't be imported"),
        ({"default": {"TIMEOUT": 0}}, "TIMEOUT=0"),
        ([], "must be a dict"),
        ({"default": {"LOCATION": "http://ada:secret@x"}}, "unknown scheme: http://"),
        (None, "neither django-redis nor"),
    ],
)
def test_misconfiguration_is_told(configured: Any, told: str, settings: Any) -> None:
    """The error is one line, without a password."""
    settings.LOCKS = configured
    for words in (["list"], ["show", "a"], ["doctor"]):
        done = command(*words)
        assert done.code == 1
        assert told in done.err + done.out
        assert "secret" not in done.err + done.out


# As a program.


@pytest.mark.parametrize(
    "words",
    [
        ["--no-color", "list", "--using", "default"],
        ["list", "--no-color", "--using", "default"],
        ["--no-color", "--using", "default"],
        ["--using", "default", "--no-color"],
        ["--settings=tests.settings", "--verbosity", "1", "list", "--using", "default"],
        ["list", "--settings", "tests.settings", "-v", "2", "--using", "default", "--traceback"],
    ],
)
def test_common_options_stand_before_or_after_the_command(
    server: EmbeddedServer, words: list[str]
) -> None:
    """``locks --no-color list`` and ``locks list --no-color`` are the same."""
    held("product:1")
    done = program(*words)
    assert (done.code, done.err) == (0, "")
    assert listed(done) == ["product:1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["relase", "a"], "did you mean 'release'?"),
        (["list", "--sort", "size"], "invalid choice: 'size'"),
        (["list", "--older-than", "soon"], "'soon' is not a duration"),
        (["list", "--limit", "0"], "'0' is not a positive integer"),
        (["list", "--watch", "0"], "'0' is not an interval"),
        (["show"], "the following arguments are required: name"),
        (["release"], "Specify what to release"),
        (["list", "--using", "nowhere"], "no alias 'nowhere'"),
        (["show", "a\nb", "--using", "default"], "control characters"),
    ],
)
def test_wrong_use_is_exit_code_two(server: EmbeddedServer, words: list[str], told: str) -> None:
    """The error is one line that explains the usage."""
    done = program(*words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


def test_help_names_the_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` of the command and of each of its commands."""
    for words in ([], *([name] for name in arguments.COMMANDS)):
        with pytest.raises(SystemExit) as caught:
            Command().create_parser("manage.py", "locks").parse_args([*words, "--help"])
        assert caught.value.code == 0
        told = capsys.readouterr().out
        assert "Exit codes: 0 done" in told
        assert words or all(name in told for name in arguments.COMMANDS)


def test_reader_that_leaves_early_is_no_error(server: EmbeddedServer) -> None:
    """``locks | head -1`` ends without a traceback."""
    for number in range(2000):
        held(f"product:{number:0200}")
    with subprocess.Popen(
        program_arguments("list", "--using", "default"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith("NAME")
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(20)
    assert process.returncode == 141  # as of a program that SIGPIPE ended


def test_stream_that_can_not_show_a_name_escapes_it(server: EmbeddedServer) -> None:
    """An output in ASCII has the name escaped, and no error."""
    held("鎖")
    done = program("list", "--using", "default", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.code == 0
    assert listed(done) == ["\\u9396"]


def test_without_admin_auth_and_celery(server: EmbeddedServer) -> None:
    """All commands work without them."""
    program_text = """
        import sys
        sys.modules["celery"] = None  # as if it were not installed
        from django.core.management import execute_from_command_line
        execute_from_command_line(["manage.py", "locks", *sys.argv[1:]])
    """
    held("a")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program_text), *words],
            env=environment(
                DJANGO_SETTINGS_MODULE="tests.apps.bare_settings",
                LOCK_TEST_APPS="django_redis_lock",
            ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert "a " in run("list").stdout
    assert run("release", "a", "--noinput", "--only-dead").returncode == 3
    done = run("release", "a", "--noinput", "--reason", "stuck")
    assert (done.returncode, "a: released" in done.stdout) == (0, True), done.stderr
    assert "stuck" in run("history").stdout
    done = run("doctor")
    assert (done.returncode, "Celery" in done.stdout) == (0, False), done.stdout


# Its page in the reference.

PAGE = DOCS / "reference" / "command.md"


def test_the_options_are_those_of_the_reference() -> None:
    """Each option and its default is in the table, and the other way round."""
    parser = Command().create_parser("manage.py", "locks")
    (commands,) = [item for item in parser._actions if isinstance(item.choices, dict)]
    assert isinstance(commands.choices, dict)
    real: dict[tuple[str, str], str] = {}
    for command_name, own in commands.choices.items():
        for action in own._actions:
            word = action.option_strings[0] if action.option_strings else action.dest
            if word in ANYWHERE:
                continue
            of_all = word in ("--format", "--json", "--using", "--no-color", "--force-color")
            real["every" if of_all else command_name, _documented(word)] = str(action.default)
    rows = table(PAGE, "Options")
    assert {(row[0], row[1]) for row in rows} == set(real)
    for name, option, default, _ in rows:
        if default not in ("", "all", "required"):
            assert real[name, option] == default


ANYWHERE = ("-h", "--settings", "--pythonpath", "--traceback", "-v")


def _documented(word: str) -> str:
    return word if word.startswith("-") else {"names": "NAME"}.get(word, word.upper())


def test_the_examinations_are_those_of_the_reference() -> None:
    """Each line of the doctor is in the table, and the other way round."""
    package = Path(console.__file__).parent / "doctor"
    source = "".join(path.read_text() for path in package.glob("*.py"))
    found = set(re.findall(r'\b(?:ok|warn|fail|unavailable|status)\)?\(\s*"([a-z ]+)"', source))
    documented = {row[0] for row in table(PAGE, "The examinations of doctor")}
    assert documented == found


def test_the_exit_codes_are_those_of_the_reference() -> None:
    """The table has the codes that the command ends with."""
    assert [row[0] for row in table(PAGE, "Exit codes")] == ["0", "1", "2", "3", "130", "141"]
    assert (USAGE, NOTHING) == (2, 3)


# Durations.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Seconds, or numbers with units, together or alone."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "10 m", "m", "-1", "nan", "inf", "1h30", "1y", "1e999"]
)
def test_senseless_durations_are_refused(text: str) -> None:
    """What is not a duration is named."""
    with pytest.raises(argparse.ArgumentTypeError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.96, "1m00s"),
        (192, "3m12s"),
        (3599.99, "1h00m"),
        (7500, "2h05m"),
        (86400 * 3 + 4 * 3600, "3d04h"),
    ],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    """The two largest units, rounded without reaching sixty of one."""
    assert duration(seconds) == text


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    locks.reset()
