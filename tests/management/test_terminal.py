"""``manage.py locks`` as a program: how it is called, on terminals and in pipes."""

from __future__ import annotations

import os
import shlex
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_redis_lock import locks
from django_redis_lock.management.commands.locks import Command, parse_duration
from django_redis_lock.management.output import duration
from tests.tools import eventually, state_of
from tests.tools.console import Screen, arguments, command, environment, held

DOWN = {"LOCATION": "redis://127.0.0.1:1/0"}


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow cells and columns that are less important give way; a pipe has it all."""
    many = ["short", "a name that goes on and on " * 8, "ключ " * 40]
    for name in many:
        held(name, 600)
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Tty()
    call_command("locks", "list", stdout=screen)
    rows = screen.getvalue().splitlines()
    assert len(rows) == 1 + len(many)
    assert [row for row in rows if len(row) > columns] == []
    assert len([row for row in rows if "…" in row]) >= 2
    assert any(row.startswith("short ") for row in rows)
    assert ("WAITERS" in rows[0]) is (columns >= 80)
    assert ("FENCE" in rows[0]) is (columns == 200)
    if columns == 200:
        assert len({row.rindex("  ") for row in rows[1:]}) == 1  # the column stands in one line
    done = command("list")
    assert [name in done.out for name in many] == [True] * 3


@pytest.mark.parametrize(
    ("words", "plain", "output", "coloured"),
    [
        ([], "", Tty, True),
        (["--no-color"], "", Tty, False),
        ([], "1", Tty, False),
        (["--format", "json"], "", Tty, False),
        ([], "", StringIO, False),
        (["--force-color"], "", StringIO, True),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    words: list[str],
    plain: str,
    output: type[StringIO],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django.core.management.color.supports_color", lambda: True)
    monkeypatch.setenv("NO_COLOR", plain)
    held("a")
    out = output()
    call_command("locks", "list", *words, stdout=out)
    assert ("\x1b[" in out.getvalue()) is coloured


def test_question_on_a_terminal() -> None:
    """It asks for a reason, too; Ctrl-C is no answer."""
    handle = held("a")
    with Screen("release", "a", "--reason", "stuck") as screen:
        screen.see("[y/N]")
        handle.ensure_held()
        # Python misses a signal that comes just before it asks the system to read.
        eventually(lambda: state_of(screen.process.pid) == "S")
        screen.interrupt()
        assert screen.end() == 130, screen.plain
        assert "Interrupted: nothing was released" in screen.plain
    with Screen("release", "a") as screen:
        screen.see("Reason for the audit:")
        screen.type("it hangs\n")
        screen.see("Release 1 lock?")
        screen.type("y\n")
        assert screen.end() == 0, screen.plain
    assert locks["default"].history("a", 1)[0].reason == "it hangs"
    assert not handle.owned()


@pytest.mark.parametrize(
    ("answers", "code", "told"),
    [
        (StringIO(""), 1, "Declined: nothing was released"),
        (StringIO("yess\n"), 1, "Declined: nothing was released"),
        (StringIO("YES\n"), 0, ""),
        (Tty("\ny\n"), 0, "Reason for the audit: "),
        (Tty("\ny\n"), 2, "requires a reason"),
        (Tty("x" * 501 + "\n"), 2, "at most 500"),
    ],
)
def test_answers(
    settings: Any, monkeypatch: pytest.MonkeyPatch, answers: StringIO, code: int, told: str
) -> None:
    """Another program may answer; an empty reason is none, unless the alias needs one."""
    if told == "requires a reason":
        strict = {"OPERATORS": {"REASON_REQUIRED": True}}
        settings.LOCKS = {"default": {**settings.LOCKS["default"], **strict}}
    monkeypatch.setattr("sys.stdin", answers)
    handle = held("a")
    done = command("release", "a", "--format", "json")
    assert (done.code, told in done.err) == (code, True)
    assert ("Reason" in done.err) is isinstance(answers, Tty)
    assert ("Release 1 lock? The holders keep running. [y/N]" in done.err) is (code < 2)
    assert ('"result": "released"' in done.out, handle.owned()) == (not code, bool(code))


def test_reader_that_left_is_no_error_when_a_server_is_silent(tmp_path: Path) -> None:
    """The exit code is that of a program that SIGPIPE ended."""
    (tmp_path / "partly_down.py").write_text(
        f"from tests.settings import *\nLOCKS = {{'default': LOCKS['default'], 'down': {DOWN}}}\n"
    )
    held("a")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        done = subprocess.run(
            arguments("show", "a", "--settings", "partly_down", "--pythonpath", str(tmp_path)),
            env=environment(),
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, b"BrokenPipeError" in done.stderr) == (141, False)


# How it is called.


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("--sort=lease", "list"),
        ("--sor lease --limit 5", "list"),
        ("--settings shop.down --pythonpath lists -v 2", "list"),
        ("--using run list --sort lease", "list"),
        ("--using run run x -- show", "run"),
        ("--format json show x", "show"),
        ("--older-than 5m -- runs", "list"),
        ("--settings=tests.settings --no-color --verbosity 1 list", "list"),
        ("list --settings tests.settings -v 2 --no-color --traceback", "list"),
    ],
)
def test_options_stand_before_or_after_the_command(line: str, command: str) -> None:
    """The value of an option is no command, nor is a word after two dashes."""
    parsed = Command().create_parser("manage.py", "locks").parse_args(line.split())
    assert parsed.no_color is ("--no-color" in line)
    assert (parsed.command, parsed.program) == (command, ["show"] if command == "run" else [])
    assert parsed.using in (None, "run")


NO_DURATIONS = ("''", "'10 m'", "nan", "inf", "1h30", "1y", "1e999", "36501d")
LONG = "x" * 501


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--sort lease relase a", "did you mean 'release'?"),
        ("list --limit 0", "'0' is not a whole number from 1 to 1000000."),
        ("list --limit 1000001", "'1000001' is not a whole number"),
        *((f"list --older-than {text}", "is not a duration") for text in NO_DURATIONS),
        ("release --noinput", "Pass exactly one of NAME..."),
        ("release --noinput --all --pattern *", "exactly one of NAME..."),
        ("release --noinput --all --token-id 0", "exactly one NAME."),
        (f"release --noinput a --reason {LONG}", "reason has at most 500 characters"),
        (f"release --noinput a --by {LONG}", "--by has at most 500 characters"),
        ("release --noinput 'a\nb'", "control characters"),
        ("limit render x", "not a whole number"),
        ("limit render -1", "'-1' is not a whole number from 0 to 1000000."),
        ("limit 'a\nb' 1", "control characters"),
        ("limit render 1 --clear", "--clear requires NAME and can't be combined with LIMIT."),
        ("limit --clear", "--clear requires NAME and can't be combined with LIMIT."),
        (f"limit render 1 --by {LONG}", "by has at most 500 characters"),
        ("unpark", "Pass NAME (alone"),
        ("unpark '' --aside --delete --noinput", "Pass NAME (alone"),  # not those of all locks
        ("unpark x --due", "Pass NAME (alone"),
        ("unpark x --aside --task-id 1", "Pass NAME (alone"),
        ("unpark x --delete", "--delete requires --aside"),
        ("run a --format json -- true", "locks run: error: unrecognized arg"),
        ("run x --", "No program given. Usage: locks run NAME -- PROGRAM"),
        ("run x ls -l", "No program given. Usage: locks run NAME -- PROGRAM"),
        ("run x --timeout 0 -- true", "timeout"),
        ("run '' -- true", "name"),
        ("run x --using nowhere -- true", "no alias 'nowhere'"),
        ("run x --using '' -- true", "no alias ''"),
        ("doctor --fail-level ok", "invalid choice: 'ok'"),
    ],
)
def test_wrong_use_is_exit_code_two(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = held("a")
    with pytest.raises(SystemExit, match="2"):
        Command().run_from_argv(["manage.py", "locks", *shlex.split(line)])
    out, err = capsys.readouterr()
    assert (out, told in err) == ("", True)
    assert (handle.owned(), locks["default"].limits()) == (True, [])


def test_durations_are_read_and_shown() -> None:
    assert [parse_duration(text) for text in ("0", "0.5", "90s", "1h30m")] == [0, 0.5, 90, 5400]
    shown = [duration(seconds) for seconds in (4.21, 59.6, 192, 7500, 3 * 86400, None)]
    assert shown == ["4.2s", "1m", "3m12s", "2h05m", "3d", ""]
