"""``manage.py locks``: what it lists, shows and releases, and its page in the reference."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockLost
from django_redis_lock.management import doctor
from django_redis_lock.management.changing import system_user
from django_redis_lock.management.commands.locks import Command
from django_redis_lock.management.output import Terminal
from django_redis_lock.operators import ORDERS
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, queue
from tests.tools.admin import hold_as
from tests.tools.console import Done, command, held, read
from tests.tools.docs import DOCS, table


def listed(done: Done) -> list[str]:
    return [line.split("  ")[0] for line in done.lines[1:]]


# list


def test_list_tells_who_holds_what() -> None:
    assert command() == Done(0, "", "No locks are held.\n")
    first, second = held("product:1"), held("product:2", 90)
    (waiting,) = queue(lock("product:1"))
    for done in (command(), command("list"), command("list", "product:*"), command("prod*")):
        assert (done.code, done.err) == (0, "")
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
    done = command("list", "--older-than", "1h30m", "--format", "json")
    assert (done.code, read(done, "locks")) == (3, [])
    assert done.err == "No lock has been held for at least 1h30m."
    done = command("list", "p*", "--older-than", "15m", "--attention")
    told = "No held lock matches 'p*', has been held for at least 15m and needs attention."
    assert (done.code, done.out, done.err) == (3, "", told)


def test_list_is_sorted_limited_and_selected_by_age() -> None:
    for name, timeout in (("b", 30), ("a", 20), ("c", 10)):
        held(name, timeout)
    (waiting,) = queue(lock("a"))
    assert listed(command("list")) == ["b", "a", "c"]
    assert listed(command("list", "--reverse")) == ["c", "a", "b"]
    assert listed(command("list", "--limit", "2")) == ["b", "a"]
    orders = {"name": "abc", "held": "bac", "lease": "cab", "waiters": "a", "fence": "cab"}
    assert {*orders, "holder"} == set(ORDERS), "by the same holder all are equal"
    for sort, order in orders.items():
        assert "".join(listed(command("list", "--sort", sort))).startswith(order), sort
    assert listed(command("list", "--sort", "name", "--reverse", "--limit", "1")) == ["c"]
    eventually(lambda: locks["default"].holder("c").held_for > 0.2)
    assert sorted(listed(command("list", "--older-than", "0.2s"))) == ["a", "b", "c"]
    locks["default"].force_release("a")
    assert waiting.outcome() is True


def test_several_backends_are_told_apart(server: EmbeddedServer, settings: Any) -> None:
    settings.LOCKS = {
        using: {"LOCATION": server.url(), "KEY_PREFIX": using} for using in ("default", "url")
    }
    for using in ("default", "url"):
        lock("a", 60, using=using).acquire()
    done = command()
    assert done.lines[0].split()[1] == "USING"
    assert sorted(line.split()[1] for line in done.lines[1:]) == ["default", "url"]
    assert listed(command("list", "--using", "url")) == ["a"]
    for none in ("nowhere", ""):
        done = command("list", "--using", none)
        assert (done.code, f"no alias {none!r}." in done.err) == (2, True)


def test_control_characters_are_escaped(client: redis.Redis) -> None:
    record = json.dumps(
        {"host": "h\x1b[2J\n", "pid": 1, "thread": "\x9b1m", "metadata": {"\r": "\x07"}}
    )
    client.set("lock:a\u202eb", f"token 1700000000000000 - - {record}", px=60_000)
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


# show and history


def test_show_tells_everything() -> None:
    done = command("show", "product:1")
    assert (done.code, done.out, done.err) == (3, "", "Lock 'product:1' is not held.")
    assert command("show", "a\nb").code == 2
    held("product:1")
    locks["default"].force_release("product:1", by="ada", reason="stuck")
    done = command("show", "product:1")
    assert (done.code, "ada" in done.out) == (3, True)
    first = held("product:1", 60, metadata={"shop": "7"})
    waiting = queue(lock("product:1", 7), lock("product:1", 7))
    done = command("show", "product:1")
    assert done.code == 0
    for words in (
        "life        alive: its process is running",
        "metadata    shop = 7",
        "ada",
        "stuck",
    ):
        assert words in done.out, words
    rows = [line for line in done.lines if line.startswith(("1  ", "2  "))]
    assert [waiting[0].name in rows[0], waiting[1].name in rows[1]] == [True, True]
    assert all("7.0s" in row for row in rows)
    (known,) = read(command("show", "product:1", "--format", "json"), "locks")
    assert (known["holder"]["fence"], known["life"]) == (first.fence, "alive")
    assert [item["thread"] for item in known["waiting"]] == [item.name for item in waiting]
    assert [item["lease"] for item in known["waiting"]] == [7.0, 7.0]
    assert all(item["waited"] >= 0 and item["since"] for item in known["waiting"])
    assert "force_released" in [item["event"] for item in known["history"]]
    first.release()
    for item in waiting:
        locks["default"].force_release("product:1")
        assert item.outcome() is True


def test_a_holder_that_this_host_does_not_know(client: redis.Redis) -> None:
    renewed = {"auto_renew": True, "lease": 30_000, "max_hold": 3_600_000}
    hold_as(client, "t", task_id="77", task_name="shop.import", **renewed)
    done = command("show", "t")
    assert done.code == 0
    for line in (
        "task name   shop.import",
        "task id     77",
        "life        unknown: its holder runs on far",
    ):
        assert f"  {line}" in done.out
    assert ", renewed until held for 1h" in done.out
    done = command("release", "t", "--only-dead", "--noinput")
    told = "Skipped 1 lock: its holder runs on far, so this host can't tell whether it is alive."
    assert (done.code, told in done.err) == (3, True)
    hold_as(client, "t", host=socket.gethostname(), pid_space="another")
    assert "unknown: its holder runs in another container of" in command("show", "t").out


def test_history_tells_of_releases() -> None:
    assert command("history") == Done(0, "", "The audit has no forced releases or freed locks.\n")
    for name, by in (("a", "ada"), ("b", "bob")):
        held(name)
        locks["default"].force_release(name, by=by, reason="it hangs")
    rows = sorted(command("history").lines[1:])
    assert [row.split()[2:4] for row in rows] == [["force_released", "a"], ["force_released", "b"]]
    assert re.search("ada .* *it hangs", rows[0])
    assert len(command("history", "--limit", "1").lines) == 2
    (event,) = read(command("history", "a", "--format", "json"), "events")
    assert (event["event"], event["by"]) == ("force_released", "ada")
    done = command("history", "c")
    assert (done.code, done.err) == (3, "The audit has no events of 'c'.")


# release


def test_release_keeps_new_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = {name: held(name) for name in ("a", "b", "c")}
    successors = []

    def confirm(self: Terminal, question: str, done: str) -> str:
        assert "Release 3 locks?" in question
        handles["a"].release()
        successors.append(held("a"))
        handles["b"].release()
        return "yes"

    monkeypatch.setattr(Terminal, "ask", confirm)
    done = command("release", "a", "b", "c", "--reason", "it hangs")
    assert done.code == 3
    assert "a: not released, the holder has changed to " in done.out
    assert f"{os.getpid()} (MainThread)\n" in done.out
    assert "b: not released, already free" in done.out
    assert "c: released" in done.out
    assert done.err == "Released 1 of 3 locks; skipped 2 whose holder had changed."
    with pytest.raises(LockLost):
        handles["c"].ensure_held()
    (entry,) = locks["default"].history()
    assert (entry.name, entry.by, entry.reason) == ("c", system_user(), "it hangs")
    successors[0].ensure_held()
    token_id = locks["default"].holder("a").token_id
    done = command("release", "a", "--token-id", "0" * 16, "--noinput")
    assert done.code == 3
    assert "Lock 'a' is not held with token id 0000000000000000." in done.err
    successors[0].ensure_held()
    done = command("release", "a", "--token-id", token_id, "--noinput", "--format", "json")
    assert (done.code, read(done, "outcomes")[0]["result"]) == (0, "released")
    assert not successors[0].owned()
    done = command("release", "--all", "--noinput", "--format", "json")
    assert (done.code, read(done, "outcomes")) == (3, [])


def test_dry_run_releases_nothing() -> None:
    handle = held("a")
    done = command("release", "--all", "--dry-run")
    assert (done.code, listed(done)) == (0, ["a"])
    assert "1 lock would be released" in done.err
    (shown,) = read(command("release", "a", "--dry-run", "--format", "json"), "locks")
    assert shown["fence"] == handle.fence
    done = command("release", "a", "b", "--dry-run")
    assert (done.code, "Lock 'b' is not held." in done.err) == (3, True)
    handle.ensure_held()


# Its page in the reference.

PAGE = DOCS / "reference" / "command.md"
ANYWHERE = ("-h", "--settings", "--pythonpath", "--traceback", "-v")


def test_the_json_of_a_holder_is_that_of_the_reference() -> None:
    handle = held("endless", None, metadata={"shop": "7\x1b"})
    held("product:1", 60)
    done = command("list", "--format", "json")
    assert (done.code, done.err, len(done.lines), "\x1b" in done.out) == (0, "", 4, False)
    endless, product = read(done, "locks")
    (keys,) = re.findall(r"^\| a holder \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert endless.keys() == set(re.findall("`(.*?)`", keys))
    assert (endless["lease_left"], endless["expires_at"]) == (None, None)
    assert (endless["fence"], endless["metadata"]) == (handle.fence, {"shop": "7\x1b"})
    assert 0 < product["lease_left"] <= 60
    assert product["acquired_at"] < product["expires_at"]


def test_the_options_and_checks_are_those_of_the_reference() -> None:
    parser = Command().create_parser("manage.py", "locks")
    (commands,) = [item for item in parser._actions if isinstance(item.choices, dict)]
    assert isinstance(commands.choices, dict)
    real: dict[tuple[str, str], str] = {}
    for name, own in commands.choices.items():
        for action in own._actions:
            word = action.option_strings[0] if action.option_strings else action.dest.upper()
            if word not in ANYWHERE:
                of_all = word in ("--format", "--using", "--no-color", "--force-color")
                word = "NAME" if word == "NAMES" else word
                real["every" if of_all else name, word] = str(action.default)
    documented: set[tuple[str, str]] = set()
    for row, meaning in table(PAGE, "Options"):  # with one command, and one or more of its options
        name, *options = row.replace(",", "").split()
        documented |= {(name, option) for option in options}
        for default in re.findall(r"Default (\S+)\.$", meaning):
            assert real[name, options[0]] == default
    assert documented == set(real)
    source = Path(doctor.__file__).read_text()
    found = set(re.findall(r'\b(?:ok|warn|fail|status)\)?\(\s*"([a-z -]+)"', source))
    assert {row[0] for row in table(PAGE, "The checks of doctor")} == found
