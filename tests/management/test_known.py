"""``manage.py locks`` says what it knows, and what it does not; and how it is called."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.management.commands.locks import Command
from django_redis_lock.management.console import (
    arguments,
    events,
    facts,
    releasing,
    watching,
)
from django_redis_lock.management.console.releasing import system_user
from django_redis_lock.operators import writability
from django_redis_lock.operators.breaking import Outcome, Result
from django_redis_lock.protocol.attention import Attention
from django_redis_lock.protocol.records import Waiter
from example_project.demo.hints import closing_commands
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, eventually
from tests.tools.console import command, environment

LOCMEM = "django_redis_lock.backends.locmem.LocMemLockBackend"
DOWN = "redis://127.0.0.1:1/0"

pytestmark = pytest.mark.usefixtures("no_workers", "db")


@pytest.fixture(autouse=True)
def _memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One alias, in the memory of this process."""
    monkeypatch.setattr("django_redis_lock.protocol.conversation.RETRY_PAUSES", ())
    settings.LOCKS = {"default": {"BACKEND": LOCMEM}}


@pytest.fixture
def half(settings: Any) -> None:
    """An alias whose server is down, and one whose locks are in memory."""
    settings.LOCKS = {"down": {"LOCATION": DOWN}, "default": {"BACKEND": LOCMEM}}


def held(name: str, **options: Any) -> Any:
    """Return a handle that holds a lock."""
    handle = lock(name, 60, **options)
    assert handle.acquire(blocking=False)
    return handle


# What is not known.


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["release", "b", "--noinput"], "Lock 'b' is not held, as far as is known."),
        (
            ["release", "b", "--noinput", "--using", "down"],
            "Whether lock 'b' is held is not known.",
        ),
        (["show", "b"], "The locks of 'down' are not known"),
        (["list", "b*"], "The locks of 'down' are not known"),
        (["history"], "The locks of 'down' are not known"),
    ],
)
def test_silence_is_not_taken_for_a_free_lock(words: list[str], told: str) -> None:
    """The exit code is 2; the answers of the other backend are shown."""
    done = command(*words)
    assert done.code == 2
    assert told in done.err
    assert not re.search("is not held[.]|No lock|No held|There is nothing", done.err)
    answer = json.loads(command(*words, "--json").out)
    assert [one["using"] for one in answer["not_known"]] == ["down"]


@pytest.mark.parametrize("words", [["list"], ["show", "a"], ["history"], ["release", "a"]])
def test_wrong_setting_hides_no_other_backend(settings: Any, words: list[str]) -> None:
    """The other backends are listed and released; the exit code is 1."""
    settings.LOCKS = {"bad": {"LOCATION": "redis://:hunter2@h:1x/1"}, **settings.LOCKS}
    held("a")
    held("lost")
    command("release", "lost", "--noinput")
    more = ["--noinput"] if words[0] == "release" else []
    done = command(*words, *more, "--json")
    answer = json.loads(done.out)
    assert (done.code, [one["using"] for one in answer.pop("not_known")]) == (1, ["bad"])
    assert "'default'" in str(answer)
    assert "1 to 65535" in done.err
    assert "The locks of 'bad' are not known; see above." in done.err
    alone = command(*words, *more, "--using", "bad")
    assert (alone.code, alone.out, "1 to 65535" in alone.err) == (1, "", True)
    assert "hunter2" not in done.out + done.err + alone.err


@pytest.mark.parametrize("words", [["list"], ["show", "a"], ["release", "a", "--noinput"]])
def test_wrong_setting_hides_no_silent_server(settings: Any, words: list[str]) -> None:
    """With an invalid and an unavailable alias the exit code is 2."""
    wrong = {"LOCATION": "redis://h:1x/1"}
    settings.LOCKS = {"bad": wrong, "down": {"LOCATION": DOWN}, **settings.LOCKS}
    held("a")
    assert command(*words).code == 2


def test_wrong_setting_hides_no_release_that_is_not_known(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a server becomes unavailable during the release, the exit code is 2."""
    settings.LOCKS = {"bad": {"LOCATION": "redis://h:1x/1"}, **settings.LOCKS}
    held("a")
    monkeypatch.setattr(
        locks["default"], "force_release", lambda *args, **options: _raise(LockUnavailable("No."))
    )
    done = command("release", "a", "--noinput")
    assert (done.code, "the outcome of 1 is not known" in done.err) == (2, True)


def test_watch_goes_on_beside_a_wrong_setting(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture has the locks of the others, and the error."""
    settings.LOCKS = {"bad": {"LOCATION": "redis://h:1x/1"}, **settings.LOCKS}
    held("a")
    picture = draw(monkeypatch, looks=1)
    assert "1 held, 'bad' not known" in picture
    assert "1 to 65535" in picture


def draw(monkeypatch: pytest.MonkeyPatch, *words: str, looks: int, between: Any = None) -> str:
    """Run ``--watch`` for so many looks, with something done after the first."""
    left = [looks]

    def sleep(seconds: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        if between:
            between()

    mine = SimpleNamespace(sleep=sleep, strftime=time.strftime)  # threads sleep by the other one
    monkeypatch.setattr(watching, "time", mine)
    out = StringIO()
    with pytest.raises(KeyboardInterrupt):
        call_command("locks", "list", "--watch", *words, stdout=out, stderr=StringIO())
    return out.getvalue()


@pytest.mark.usefixtures("half")
def test_watch_counts_only_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one alias silent the others are counted, and the silent one is named."""
    held("a")
    picture = draw(monkeypatch, looks=1)
    assert "1 held, 'down' not known  every" in picture
    assert "127.0.0.1:1" in picture


def test_watch_keeps_what_it_saw_last(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that falls silent keeps its rows, all of them or as many as are wanted."""
    names = ("default", "other")
    settings.LOCKS = {name: {"BACKEND": LOCMEM, "LOCATION": name} for name in names}
    for number in range(4):
        held(f"b:{number}")
    lock("a", 60, using="other").acquire()

    def fail(pattern: str) -> Any:
        raise LockUnavailable("The server sleeps.")

    picture = draw(
        monkeypatch,
        *("--limit", "3", "--sort", "name"),
        looks=2,
        between=lambda: monkeypatch.setattr(locks["default"], "holders", fail),
    )
    first, second = re.split(r"^(?=.* every)", picture, flags=re.MULTILINE)[1:]
    assert "5 held  every" in first
    assert "1 held, 'default' not known" in second
    assert re.search(r"Last answer of 'default' at \d\d:\d\d:\d\d: 4 held, below", second)
    for frame in (first, second):
        assert re.findall(r"^(?:a|b:\d)(?= )", frame, re.MULTILINE) == ["a", "b:0", "b:1"]


@pytest.mark.parametrize("height", [3, 4])
def test_watch_of_a_low_screen_only_counts(monkeypatch: pytest.MonkeyPatch, height: int) -> None:
    """Where no row has room none is drawn, and all are counted."""
    for number in range(21):
        held(str(number))
    monkeypatch.setattr(watching.Terminal, "is_interactive", True)
    monkeypatch.setattr(watching.Terminal, "height", height)
    picture = draw(monkeypatch, looks=1).replace("\x1b[K", "")
    assert picture.splitlines()[2:] == ["... and 21 more", "\x1b[J"]


@pytest.mark.usefixtures("half")
def test_watch_as_json_is_an_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a line, with its time, the locks and the silent aliases."""
    held("a")
    first, second = map(json.loads, draw(monkeypatch, "--json", looks=2).splitlines())
    assert [one["name"] for one in first["locks"]] == ["a"]
    assert [one["using"] for one in second["not_known"]] == ["down"]
    assert (first["schema"], first["at"] < second["at"]) == (1, True)


def test_waiters_that_are_not_known_are_not_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question mark with a legend in a table, words in ``show``, null in JSON."""
    held("a")
    holder = dataclasses.replace(locks["default"].holder("a"), waiters=None)
    monkeypatch.setattr(locks["default"], "holders", lambda pattern: iter([holder]))
    monkeypatch.setattr(locks["default"], "holder", lambda name: holder)
    monkeypatch.setattr(
        locks["default"], "waiting", lambda name, limit=None: _raise(LockUnavailable("No."))
    )
    for words in (["list"], ["list", "--sort", "waiters"], ["release", "a", "--dry-run"]):
        done = command(*words)
        assert done.lines[1].split()[-3] == "?", words
        assert "WAITERS ?: the server does not report" in done.err
    assert json.loads(command("list", "--json").out)["locks"][0]["waiters"] is None
    done = command("show", "a")
    assert "waiters     not known" in done.out
    assert done.code == 2  # and yet the holder is shown, though the line is not known
    (known,) = json.loads(command("show", "a", "--json").out)["locks"]
    assert (known["waiters"], known["waiting"]) == (None, None)
    assert known["holder"]["token_id"] == holder.token_id


def test_history_that_is_not_known_is_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text in ``show``, null in JSON."""
    held("a")
    monkeypatch.setattr(
        locks["default"], "history", lambda name, limit: _raise(LockUnavailable("No."))
    )
    done = command("show", "a")
    assert (done.code, done.lines[-2:]) == (2, ["History, newest first", "  Not known."])
    (known,) = json.loads(command("show", "a", "--json").out)["locks"]
    assert known["history"] is None
    assert known["holder"]


def _raise(error: Exception) -> Any:
    raise error


def test_refusal_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refused released nothing, which is known: exit code 1."""
    held("a")

    def refused(shown: Any, **options: Any) -> Any:
        return (Outcome(one, Result.REFUSED, error="OOM command not allowed") for one in shown)

    monkeypatch.setattr(releasing, "release_shown", refused)
    done = command("release", "a", "--noinput")
    assert done.code == 1
    assert "a: not released: OOM command not allowed" in done.out
    assert done.err == "0 of 1 lock released; the server refused 1."
    (outcome,) = json.loads(command("release", "a", "--noinput", "--json").out)["outcomes"]
    assert (outcome["result"], outcome["error"]) == ("refused", "OOM command not allowed")


FULL = "is full (maxmemory 1 bytes): no new lock can be taken there; a forced release still works"


def test_server_that_can_not_be_written_is_told_of_before(
    own_server: EmbeddedServer, settings: Any
) -> None:
    """A replica, and a server that is full: a notice, for one call more."""
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    held("a")
    client = redis.Redis.from_url(own_server.url())
    assert command("list").err == ""
    calls = client.info("commandstats")
    client.config_set("maxmemory", "1")
    for words in (["list"], ["list", "--json"], ["release", "a", "--dry-run"]):
        assert FULL in command(*words).err
    client.config_set("maxmemory", "0")
    client.config_set("min-replicas-to-write", 2)
    assert "has too few good replicas (0 of the 2 that min-replicas-to-write" in command("list").err
    client.config_set("min-replicas-to-write", 0)
    client.replicaof("127.0.0.1", 1)
    assert "'default' is a read-only replica: nothing can be released" in command("list").err
    now = client.info("commandstats")
    info = now["cmdstat_info"]["calls"] - calls["cmdstat_info"]["calls"]
    assert info == 5 + 1  # of ours
    client.replicaof("NO", "ONE")
    (own_server.directory / "dump.rdb").mkdir()  # so that no snapshot takes its place
    client.config_set("save", "3600 1")
    client.bgsave()
    eventually(lambda: client.info()["rdb_last_bgsave_status"] == "err")
    assert "'default' could not save to disk" in command("list").err
    refused = command("release", "a", "--noinput")
    assert "MISCONF" in refused.out + refused.err
    client.config_set("save", "")
    assert command("list").err == ""
    client.close()


SAVES = {"stop-writes-on-bgsave-error": "yes", "save": "3600 1"}


@pytest.mark.parametrize(
    ("info", "settings_told", "why"),
    [
        ({}, {}, ""),
        ({"role": "slave", "slave_read_only": 1}, {}, "read-only replica"),
        ({"role": "slave", "slave_read_only": 0, "min_slaves_good_slaves": 0}, {}, ""),
        ({"min_slaves_good_slaves": 0}, {}, "(0 of the number that"),
        ({"min_slaves_good_slaves": 1}, {}, ""),
        ({"min_slaves_good_slaves": 1}, {"min-replicas-to-write": "2"}, "(1 of the 2 that"),
        ({"min_slaves_good_slaves": 2}, {"min-replicas-to-write": "2"}, ""),
        ({"rdb_last_bgsave_status": "err"}, {}, "it may refuse to release"),
        ({"rdb_last_bgsave_status": "err"}, SAVES, "nothing can be released"),
        ({"rdb_last_bgsave_status": "err"}, {**SAVES, "save": ""}, ""),
        ({"rdb_last_bgsave_status": "err"}, {"stop-writes-on-bgsave-error": "no"}, ""),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, {}, "append-only file"),
        ({"maxmemory": 2, "used_memory": 1, "maxmemory_policy": "noeviction"}, {}, ""),
        ({"maxmemory": 1, "used_memory": 2, "maxmemory_policy": "noeviction"}, {}, FULL),
        ({"maxmemory": 1, "used_memory": 2, "maxmemory_policy": "allkeys-lru"}, {}, ""),
    ],
)
def test_what_keeps_a_server_from_taking_writes(
    info: dict[str, Any], settings_told: dict[str, str], why: str
) -> None:
    """As INFO tells, and where that is in doubt the settings, which may be denied."""
    told = writability._because(info, settings_told.get)
    assert why in told
    assert bool(told) == bool(why)


# Who and why.


def test_reason_that_is_needed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is wrong use, which names the setting, before any server is asked."""
    settings.LOCKS = {"default": {"BACKEND": LOCMEM, "OPERATORS": {"REASON_REQUIRED": True}}}
    handle = held("a")
    with monkeypatch.context() as patch:
        patch.setattr(locks["default"], "holder", lambda name: _raise(AssertionError(name)))
        for words in (["a"], ["a", "--reason", " "], ["--all"]):
            done = command("release", *words, "--noinput")
            assert done.code == 2
            assert "LOCKS['default']['OPERATORS'] has 'REASON_REQUIRED': True" in done.err
    assert command("release", "a", "--dry-run").code == 0
    assert handle.owned()
    assert command("release", "a", "--noinput", "--reason", "stuck").code == 0


@pytest.mark.parametrize(
    ("words", "by"),
    [([], system_user()), (["--by", " ada "], "ada"), (["--by", " "], system_user())],
)
def test_who_does_it(words: list[str], by: str) -> None:
    """The user of the process, or whom ``--by`` names."""
    held("a")
    assert command("release", "a", "--noinput", *words).code == 0
    (entry,) = locks["default"].history("a")
    assert entry.by == by
    assert command("release", "a", "--by", "x" * 501).code == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["release", "pro*", "--noinput"], "locks release --pattern 'pro*'"),
        (["show", "pro[a]"], "locks list 'pro[a]'"),
        (["release", "product", "--noinput"], ""),
    ],
)
def test_pattern_in_the_place_of_a_name_is_hinted_at(words: list[str], hint: str) -> None:
    """The error has a hint how to use the pattern."""
    done = command(*words)
    assert done.code == 3
    assert ("For a pattern, use" in done.err) is bool(hint)
    assert hint in done.err


# What is shown, and under which name.


def test_mark_is_the_same_word_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, ``show`` and JSON use the same text."""
    held("a")
    held("b")
    late = Attention.RENEWAL_LATE
    monkeypatch.setattr(facts, "attention", lambda one, backend: late if one.name == "b" else None)
    done = command("list", "--sort", "name")
    assert [line.split()[-2] for line in done.lines] == ["ATTENTION", "-", "renewal_late"]
    for words in (["list", "--attention"], ["list", "*", "--attention", "--older-than", "0"]):
        assert [line.split()[0] for line in command(*words).lines] == ["NAME", "b"]
    assert command("list", "a", "--attention").code == 3
    assert "attention   renewal_late" in command("show", "b").out
    marks = [one["attention"] for one in json.loads(command("list", "--json").out)["locks"]]
    assert sorted(marks, key=str) == [None, "renewal_late"]
    assert "\x1b[33" in command("list", force_color=True).out
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        (facts.holder_columns(many=True), facts.holder_facts),
        (events.columns(name=True, many=True), facts.entry_facts),
    ],
)
def test_columns_are_keys_of_the_json(columns: Any, read: Callable[[Any], dict[str, Any]]) -> None:
    """One word for one thing."""
    held("a")
    locks["default"].force_release("a")
    held("a")
    item = locks["default"].holder("a")
    if read is facts.entry_facts:
        (item,) = locks["default"].history("a")
    headings = {c.heading.removesuffix(" (UTC)").lower().replace(" ", "_") for c in columns}
    assert headings <= set(read(item))


def test_freed_lock_has_a_word_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a worker freed was not released by an operator."""
    held("a")
    locks["default"].force_release("a")
    (entry,) = locks["default"].history("a")
    freed = dataclasses.replace(entry, event="freed", reason="its process is no more")
    monkeypatch.setattr(locks["default"], "history", lambda name, limit: [freed])
    assert command("history").lines[1].split()[2] == "freed"
    (told,) = json.loads(command("history", "--json").out)["events"]
    assert told["event"] == "freed"


def test_show_of_a_long_line_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first hundred of a thousand, and how many there are."""
    held("a")
    nobody: Any = dict.fromkeys(("since", "waited", "lease", "pid", "thread"))
    line = [
        Waiter("a", "default", token_id=f"{n:016}", auto_renew=False, host=f"web{n}", **nobody)
        for n in range(1000)
    ]
    monkeypatch.setattr(locks["default"], "waiting", lambda name, limit=None: line)
    done = command("show", "a")
    assert "web99:" in done.out
    assert "web100:" not in done.out
    assert "... and 900 more, 1000 in all" in done.out
    (known,) = json.loads(command("show", "a", "--json").out)["locks"]
    assert (known["waiters"], len(known["waiting"])) == (1000, 100)


# How it is called.


def test_every_example_of_the_help_can_be_written() -> None:
    """What ``--help`` gives as an example is parsed without complaint."""
    parser = Command().create_parser("manage.py", "locks")
    for name, examples in arguments.EXAMPLES.items():
        for example in examples:
            _, *words = shlex.split(re.split(r" [|>] ", example)[0])
            completed = arguments.complete(words)
            assert parser.parse_args(completed).command == completed[0]
            assert name in ("", completed[0])


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """``locks --version`` is not Django's."""
    with pytest.raises(SystemExit):
        Command().create_parser("manage.py", "locks").parse_args(["--version"])
    assert re.fullmatch(r"django-redis-lock \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("manage.py locks rel", ["release"]),
        ("python3 ./manage.py locks release --only-", ["--only-dead", "--only-gone"]),
        ("manage.py locks list --format ", ["table", "json"]),
        ("manage.py locks list --format =", ["table", "json"]),  # as bash splits --format=
        ("manage.py locks list --format = js", ["json"]),
        ("manage.py locks --no-color --using d", ["default"]),
        ("manage.py locks --ol", ["--older-than"]),
        ("manage.py locks release a --reason li", []),
        ("manage.py migr", ["earlier"]),
        ("python x.py", []),
    ],
)
def test_bash_completes(words: str, found: list[str], tmp_path: Path) -> None:
    """Commands, options and their values; the rest is left to what completed it before."""
    script = tmp_path / "completion"
    script.write_text(command("completion").out)
    typed = [*words.split(), *([""] if words.endswith(" ") else [])]
    program = f"""
        earlier() {{ COMPREPLY=( earlier ); }}
        complete -F earlier manage.py
        source {script}; source {script}
        COMP_WORDS=( {shlex.join(typed)} ) COMP_CWORD={len(typed) - 1}
        _django_locks {typed[0]} {shlex.quote(typed[-1])} {shlex.quote(typed[-2])}
        printf '%s\n' "${{COMPREPLY[@]}}"
        complete -p {typed[0]} | grep -q 'default -F _django_locks '
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=False, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == found


def test_closing_commands_of_the_demo_run_as_printed(server: EmbeddedServer) -> None:
    """Pasted into a shell in the repository's root; what goes on is ended with Ctrl-C."""
    for _, line in closing_commands(server):
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=ROOT,
            env=environment(PYTHONPATH=""),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout
            first = process.stdout.readline()
            if "--watch" in line:
                assert " held " in first
                process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        assert process.returncode == (130 if "--watch" in line else 0), first + rest
        assert "Traceback" not in first + rest
