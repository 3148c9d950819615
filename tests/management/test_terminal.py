"""``manage.py locks`` as a program: how it is called, on terminals and in pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redis_lock import locks
from django_redis_lock.management.commands.locks import Command
from example_project.embedded import EmbeddedServer
from tests.tools import eventually, state_of
from tests.tools.admin import hold_as
from tests.tools.console import Screen, arguments, command, environment, held

USING = ("--using", "default")
DOWN = {"LOCATION": "redis://127.0.0.1:1/0"}


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def many(server: EmbeddedServer) -> list[str]:
    names = ["short", "a name that goes on and on " * 8, "ключ " * 40]
    for name in names:
        held(name, 600)
    return names


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_fits_the_terminal(
    many: list[str], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow cells and columns that are less important give way; a pipe has it all."""
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Tty()
    call_command("locks", "list", *USING, stdout=screen)
    rows = screen.getvalue().splitlines()
    assert len(rows) == 1 + len(many)
    assert [row for row in rows if len(row) > columns] == []
    assert len([row for row in rows if "…" in row]) >= 2
    assert any(row.startswith("short ") for row in rows)
    assert ("WAITERS" in rows[0]) is (columns >= 80)
    assert ("FENCE" in rows[0]) is (columns == 200)
    if columns == 200:
        assert len({row.rindex("  ") for row in rows[1:]}) == 1  # the column stands in one line
    done = command("list", *USING)
    assert [name in done.out for name in many] == [True] * 3


def test_the_holder_is_more_important_than_the_fence(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hold_as(client, "import:7", host="worker-1.example.com", pid=3071)
    screen = Tty()
    call_command("locks", "list", *USING, stdout=screen)
    heading, row = screen.getvalue().splitlines()
    assert ("worker-1.example.com:3071 " in row, "FENCE" in heading) == (True, False)


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
    server: EmbeddedServer,
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
    call_command("locks", "list", *words, *USING, stdout=out)
    assert ("\x1b[" in out.getvalue()) is coloured


def test_question_on_a_terminal(server: EmbeddedServer) -> None:
    """It asks for a reason, too; Ctrl-C is no answer."""
    handle = held("a")
    with Screen("release", "a", "--reason", "stuck", *USING) as screen:
        screen.see("[y/N]")
        handle.ensure_held()
        # Python misses a signal that comes just before it asks the system to read.
        eventually(lambda: state_of(screen.process.pid) == "S")
        screen.interrupt()
        assert screen.end() == 130, screen.plain
        assert "Interrupted: nothing was released" in screen.plain
    with Screen("release", "a", *USING) as screen:
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
        (Tty("\ny\n"), 2, "needs a reason"),
        (Tty("x" * 501 + "\n"), 2, "at most 500"),
    ],
)
def test_answers(
    server: EmbeddedServer,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    answers: StringIO,
    code: int,
    told: str,
) -> None:
    """Another program may answer; an empty reason is none, unless the alias needs one."""
    if told == "needs a reason":
        strict = {"OPERATORS": {"REASON_REQUIRED": True}}
        settings.LOCKS = {"default": {**settings.LOCKS["default"], **strict}}
    monkeypatch.setattr("sys.stdin", answers)
    handle = held("a")
    done = command("release", "a", *USING, "--format", "json")
    assert (done.code, told in done.err) == (code, True)
    assert ("Reason" in done.err) is isinstance(answers, Tty)
    assert ("Release 1 lock? The holders are not stopped. [y/N]" in done.err) is (code < 2)
    assert ('"result": "released"' in done.out, handle.owned()) == (not code, bool(code))


def test_reader_that_left_is_no_error_when_a_server_is_silent(
    server: EmbeddedServer, tmp_path: Path
) -> None:
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


def test_notices_stand_between_the_lines_of_json(
    server: EmbeddedServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both streams are one, the JSON is whole without the lines of the notices."""
    monkeypatch.setattr("django_redis_lock.protocol.calls.RETRY_PAUSES", ())
    settings.LOCKS = {"default": settings.LOCKS["default"], "down": DOWN}
    for name in "abc":
        held(name)
    both = StringIO()
    with pytest.raises(CommandError):
        call_command("locks", "list", "--format", "json", stdout=both, stderr=both)
    written = both.getvalue().splitlines()
    (notice,) = (line for line in written if line.startswith("LOCKS['down']"))
    result = json.loads("".join(line for line in written if line != notice))
    assert len(result["locks"]) == 3


# How it is called.


@pytest.mark.parametrize(
    "words",
    [
        ["--no-color", "list"],
        ["list", "--no-color"],
        ["--using", "default", "--no-color"],
        ["--settings=tests.settings", "--no-color", "--verbosity", "1", "list"],
        ["list", "--settings", "tests.settings", "-v", "2", "--no-color", "--traceback"],
    ],
)
def test_common_options_stand_before_or_after_the_command(words: list[str]) -> None:
    parsed = Command().create_parser("manage.py", "locks").parse_args(words)
    assert (parsed.command, parsed.pattern, parsed.no_color) == ("list", "*", True)


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
    ],
)
def test_the_value_of_an_option_is_no_command(line: str, command: str) -> None:
    parsed = Command().create_parser("manage.py", "locks").parse_args(line.split())
    assert (parsed.command, parsed.program) == (command, ["show"] if command == "run" else [])
    assert parsed.using in (None, "run")


@pytest.mark.parametrize(
    ("line", "zero"),
    [
        ("-v", True),
        ("list --older-than", True),
        ("list --limit", False),
        ("limit x", True),
        ("history --limit", False),
        ("run x --timeout", True),
        ("run x --wait", True),
        ("run x --grace", True),
    ],
)
def test_numbers_are_checked_when_they_are_read(line: str, zero: bool) -> None:
    parser = Command().create_parser("manage.py", "locks")
    for text in ("nan", "inf", "1e300", str(2**63), "-1", "9" * 5000, *["0"] * (not zero)):
        with pytest.raises(CommandError, match=r"not a duration of|not a whole|invalid"):
            parser.parse_args([*line.split(), text])
    for text in ["1", *["0"] * zero]:
        assert parser.parse_args([*line.split(), text])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sort", "lease", "relase", "a"], "did you mean 'release'?"),
        (["run", "a", "--format", "json", "--", "true"], "locks run: error: unrecognized arg"),
        (["list", "--older-than", "soon"], "'soon' is not a duration"),
        (["list", "--limit", "0"], "'0' is not a whole number from 1"),
        (["doctor", "--fail-level", "ok"], "invalid choice: 'ok'"),
    ],
)
def test_wrong_use_is_exit_code_two(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        Command().run_from_argv(["manage.py", "locks", *words])
    out, err = capsys.readouterr()
    assert (out, told in err) == ("", True)


def test_without_admin_auth_and_celery(server: EmbeddedServer) -> None:
    program_text = """
        import sys
        sys.modules["celery"] = None  # as if it were not installed
        from django.core.management import execute_from_command_line
        for line in sys.argv[1:]:
            try:
                execute_from_command_line(["manage.py", "locks", *line.split()])
            except SystemExit as end:
                print("exit", end.code)
            print("=====")
    """
    held("a")
    release = "release a --noinput"
    lines = ("list", f"{release} --only-dead", f"{release} --reason stuck", "history", "doctor")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program_text), *lines],
        env=environment(
            DJANGO_SETTINGS_MODULE="tests.apps.bare_settings", LOCK_TEST_APPS="django_redis_lock"
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = dict(zip(lines, done.stdout.split("=====\n"), strict=False))
    assert "a " in told["list"]
    assert "exit 3" in told[lines[1]]
    assert "a: released" in told[lines[2]]
    assert "stuck" in told["history"]
    assert "self-test" in told["doctor"]
    assert done.stdout.count("exit ") == 1, done.stderr
