"""``manage.py locks`` says what it knows, and what it does not."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis

from django_redis_lock import locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.management.changing import system_user
from django_redis_lock.operators import Outcome, Result
from example_project.embedded import EmbeddedServer
from tests.tools import Child, eventually
from tests.tools.console import command, held
from tests.tools.parking import parking

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
DOWN = "redis://ada:secret@127.0.0.1:1/0"
WRONG = {"LOCATION": "redis://:hunter2@h:1x/1"}


@pytest.fixture(autouse=True)
def _memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {"default": {"BACKEND": LOCMEM}}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("list b*", "The locks of 'down' could not be read"),
        ("show b", "The locks of 'down' could not be read"),
        ("limit", "The locks of 'down' could not be read"),
        ("history", "The locks of 'down' could not be read"),
        ("release --all --noinput", "The locks of 'down' could not be read"),
        ("release b --noinput", "Lock 'b' is not held on the aliases that answered."),
        ("release b --noinput --using down", "It is not known whether lock 'b' is held."),
    ],
)
def test_silence_is_not_taken_for_a_free_lock(settings: Any, line: str, told: str) -> None:
    settings.LOCKS = {"down": {"LOCATION": DOWN}, **settings.LOCKS}
    words = line.split()
    done = command(*words)
    assert done.code == 2
    assert told in done.err
    assert "127.0.0.1:1" in done.err
    assert not re.search("is not held[.]|No lock|No held|There is nothing|Dry run: 0", done.err)
    (silent,) = json.loads(command(*words, "--format", "json").out)["not_known"]
    assert silent["using"] == "down"
    assert "127.0.0.1:1" in silent["error"]
    assert not re.search("secret|Traceback", done.out + done.err + silent["error"])


@pytest.mark.parametrize("words", [["list"], ["show", "a"], ["history"], ["release", "a"]])
def test_wrong_setting_hides_no_other_backend(settings: Any, words: list[str]) -> None:
    """The other backends are listed and released; the exit code is 1, or 2 if one is silent."""
    settings.LOCKS = {"bad": WRONG, **settings.LOCKS}
    held("a")
    held("lost")
    command("release", "lost", "--noinput")
    more = ["--noinput"] if words[0] == "release" else []
    done = command(*words, *more, "--format", "json")
    answer = json.loads(done.out)
    assert (done.code, [one["using"] for one in answer.pop("not_known")]) == (1, ["bad"])
    assert "'default'" in str(answer)
    assert "The locks of 'bad' could not be read; see above." in done.err
    alone = command(*words, *more, "--using", "bad")
    assert (alone.code, alone.out) == (1, "")
    for err in (done.err, alone.err):
        assert "1x" in err or "1 to 65535" in err
        assert "hunter2" not in err
    settings.LOCKS = {"down": {"LOCATION": DOWN}, **settings.LOCKS}
    assert command(*words, *more).code == 2


@pytest.mark.parametrize("line", ["list", "show a", "limit a 3", "history", "doctor"])
def test_without_any_alias(settings: Any, line: str) -> None:
    settings.LOCKS = {}
    done = command(*line.split())
    assert (done.code, "Set LOCKS = {" in done.out + done.err) == (1, True)
    (missing,) = json.loads(command(*line.split(), "--format", "json").out)["not_known"]
    assert missing["using"] == "default"


def test_waiters_and_history_that_are_not_known_are_not_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held("a")
    backend = locks["default"]
    holder = dataclasses.replace(backend.holder("a"), waiters=None)
    monkeypatch.setattr(backend, "holders", lambda pattern: iter([holder]))
    monkeypatch.setattr(backend, "holders_of", lambda names: iter([holder]))
    for method in ("waiting", "history"):
        monkeypatch.setattr(backend, method, MagicMock(side_effect=LockUnavailable("No.")))
    for words in (["list"], ["list", "--sort", "waiters"], ["release", "a", "--dry-run"]):
        assert command(*words).lines[1].split()[-3] == "?", words
    (listed,) = json.loads(command("list", "--format", "json").out)["locks"]
    assert listed["waiters"] is None
    done = command("show", "a")
    assert (done.code, "waiters     not known" in done.out) == (2, True)
    assert done.lines[-2:] == ["History, newest first", "  Not known."]
    (known,) = json.loads(command("show", "a", "--format", "json").out)["locks"]
    assert (known["waiters"], known["waiting"], known["history"]) == (None, None, None)
    assert known["holder"]["token_id"] == holder.token_id


@pytest.mark.parametrize(
    ("result", "code", "told"),
    [
        (Result.REFUSED, 1, "not released: OOM|the server refused 1."),
        (Result.UNAVAILABLE, 2, "outcome not known: OOM|the outcome of 1 is not known."),
    ],
)
def test_refusal_is_told_from_silence(
    monkeypatch: pytest.MonkeyPatch, result: Result, code: int, told: str
) -> None:
    """A server that refused released nothing, which is known; else the exit code is 2."""
    held("a")

    def fail(shown: Any, **options: Any) -> Any:
        return [Outcome(one, result, error="OOM") for one in shown]

    monkeypatch.setattr("django_redis_lock.operators.release_shown", fail)
    done, (line, summary) = command("release", "a", "--noinput"), told.split("|")
    assert (done.code, done.lines[-1]) == (code, f"a: {line}")
    assert done.err.endswith(f"Released 0 of 1 lock; {summary}")
    done = command("release", "a", "--noinput", "--format", "json")
    (outcome,) = json.loads(done.out)["outcomes"]
    assert (outcome["result"], outcome["error"]) == (result.value, "OOM")


REFUSES = "The server of LOCKS['default'] refuses writes, so it releases no locks:"
FULL = "LOCKS['default'] is full: it takes no new locks, but forced releases work."


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("setting", "told", "remedy"),
    [
        ("replicaof", f"{REFUSES} You can't write against a read only", "to the primary"),
        ("maxmemory", FULL, "Raise the server's maxmemory"),
        ("min-replicas-to-write", f"{REFUSES} NOREPLICAS", "Start the missing replicas"),
        ("save", f"{REFUSES} MISCONF", "Let the server write to its disk"),
    ],
)
def test_server_that_can_not_be_written(
    own_server: EmbeddedServer, settings: Any, name: str, setting: str, told: str, remedy: str
) -> None:
    """Lists warn of it once, also if they find nothing, and a refused change names the remedy."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    with parking(name) as parked, redis.Redis.from_url(own_server.url()) as client:
        parked.park()
        assert command("list").err == ""
        if setting == "replicaof":
            client.replicaof("127.0.0.1", 1)
        elif setting == "save":
            (own_server.directory / "dump.rdb").mkdir()  # so that no snapshot takes its place
            client.config_set("save", "3600 1")
            client.bgsave()
            eventually(lambda: client.info()["rdb_last_bgsave_status"] == "err")
        else:
            client.config_set(setting, "2")
        for words in (
            *("list", f"release {name} --dry-run", "show b", "limit", "history"),
            *("unpark b", "release b --noinput", "limit b --clear"),
        ):
            assert command(*words.split()).err.count(told) == 1, words
        for words, change in (
            (f"limit {name} 3", f"set the limit of {name!r} to 3"),
            (f"unpark {name}", f"send the parked tasks of {name!r}"),
        ):
            done = command(*words.split())
            assert (done.code, "could not be read" in done.err) == (1, False)
            assert f"The server of 'default' refused to {change}; see above." in done.err
            assert remedy in done.err
        done = command("release", name, "--noinput")
        assert (done.code, told in done.err) == (0 if told == FULL else 1, True)
        own_server.kill()
        done = command("limit", name, "3")
        assert (done.code, f"failed to set the limit of {name!r} to 3;" in done.err) == (2, True)


def test_reason_that_is_needed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LOCKS = {"default": {"BACKEND": LOCMEM, "OPERATORS": {"REASON_REQUIRED": True}}}
    handle = held("a")
    with monkeypatch.context() as patch:
        patch.setattr(locks["default"], "holders_of", MagicMock(side_effect=AssertionError))
        for words in (["a"], ["a", "--reason", " "]):
            done = command("release", *words, "--noinput")
            assert (
                done.code,
                "LOCKS['default'] requires a reason for each release" in done.err,
            ) == (2, True)
    assert command("release", "a", "--dry-run").code == 0
    assert handle.owned()
    assert command("release", "a", "--noinput", "--reason", "stuck").code == 0
    for words, by in ((["--by", " ada "], "ada"), (["--by", " "], system_user())):
        held("a")
        assert command("release", "a", "--noinput", "--reason", "stuck", *words).code == 0
        assert locks["default"].history("a", 1)[0].by == by


def test_dead_and_stopped_holders_need_attention_at_once(
    server: EmbeddedServer, settings: Any
) -> None:
    settings.LOCKS = {"default": {"LOCATION": server.url()}}

    def marked() -> list[str]:
        return [" ".join(line.split()[-2:-1]) for line in command("list").lines]

    program = "lock('endless', None).acquire(); lock('renewed').acquire()"
    with Child(f"{program}; say('held'); hear(); os._exit(1)") as child:
        assert child.hear() == "held"
        assert "lease left  no expiry" in command("show", "endless").out
        assert ", renewed while the holder lives" in command("show", "renewed").out
        assert eventually(lambda: marked() == ["ATTENTION", "-", "-"])
        child.stop()
        assert eventually(lambda: marked() == ["ATTENTION", "stopped", "stopped"])
        assert ", not renewed, because its process is stopped" in command("show", "renewed").out
        child.go_on()
        child.say()
        child.end()
    assert eventually(lambda: marked() == ["ATTENTION", "dead", "dead"])
    assert ", not renewed, because its process is gone" in command("show", "renewed").out
    assert "attention   dead" in command("show", "renewed").out
    kept = command("release", "--all", "--only-dead", "--dry-run")
    assert kept.lines[0].endswith("DEAD BECAUSE")
    assert re.search(r"process \d+ is gone$", kept.lines[1])
    held("calm")
    found = json.loads(command("list", "--attention", "--format", "json").out)["locks"]
    assert [one["attention"] for one in found] == ["dead", "dead"]
    assert command("list", "--sort", "name", force_color=True).out.count("\x1b[33") == 2
