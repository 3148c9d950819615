"""``manage.py locks`` as a program: how it is called, on terminals and in pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import redis
from django.core.management import CommandError

from django_redis_lock import locks
from django_redis_lock.management.commands.locks import Command
from example_project.demo.hints import closing_commands
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, eventually, state_of
from tests.tools.admin import hold_as
from tests.tools.console import ESCAPES, Screen, environment, held, program
from tests.tools.console import arguments as program_arguments

USING = ("--using", "default")


# On a terminal.


@pytest.fixture
def many(server: EmbeddedServer) -> list[str]:
    names = ["short", "a name that goes on and on " * 8, "ключ " * 40]
    for name in names:
        held(name, 600)
    return names


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_table_fits_the_terminal(many: list[str], columns: int) -> None:
    with Screen("list", *USING, columns=columns) as screen:
        assert screen.end() == 0
        rows = screen.plain.splitlines()
    assert len(rows) == 1 + len(many)
    assert [row for row in rows if len(row) > columns] == []
    assert len([row for row in rows if "…" in row]) >= 2
    assert any(row.startswith("short ") for row in rows)
    assert ("WAITERS" in rows[0]) is (columns >= 80)
    assert ("FENCE" in rows[0]) is (columns == 200)
    if columns == 200:
        assert len({row.rindex("  ") for row in rows[1:]}) == 1  # the column stands in one line


def test_the_holder_is_more_important_than_the_fence(client: redis.Redis) -> None:
    hold_as(client, "import:7", host="worker-1.example.com", pid=3071)
    with Screen("list", *USING, columns=80) as screen:
        assert screen.end() == 0
        heading, row = screen.plain.splitlines()
    assert "worker-1.example.com:3071 " in row
    assert "FENCE" not in heading


@pytest.mark.parametrize(
    ("words", "variables", "coloured"),
    [
        (["list"], {}, True),
        (["list", "--no-color"], {}, False),
        (["list"], {"NO_COLOR": "1"}, False),
        (["list", "--format", "json"], {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    server: EmbeddedServer, words: list[str], variables: dict[str, str], coloured: bool
) -> None:
    held("a")
    with Screen(*words, *USING, **variables) as screen:
        assert screen.end() == 0
        assert bool(re.search(r"\x1b\[[0-9;]+m", screen.seen)) is coloured


def test_question_on_a_terminal(server: EmbeddedServer) -> None:
    handle = held("a")
    for key, ends in (("\x04", 1), ("\x03", 130), ("yess\n", 1), ("y\n", 0)):
        with Screen("release", "a", "--reason", "stuck", *USING) as screen:
            screen.see("[y/N]")
            handle.ensure_held()
            # Python misses a signal that comes just before it asks the system to read.
            eventually(lambda screen=screen: state_of(screen.process.pid) == "S")
            screen.interrupt() if key == "\x03" else screen.type(key)
            assert screen.end() == ends, screen.plain
            assert "Traceback" not in screen.plain
            assert ("nothing was released" in screen.plain) is bool(ends)
    assert not handle.owned()


def test_reason_is_asked_for_on_a_terminal(server: EmbeddedServer, tmp_path: Path) -> None:
    """Nobody has to know the option; an empty answer is none, unless the alias needs one."""
    held("a")
    with Screen("release", "a", *USING) as screen:
        screen.see("Reason for the audit:")
        screen.type("it hangs\n")
        screen.see("Release 1 lock?")
        screen.type("y\n")
        assert screen.end() == 0, screen.plain
    assert locks["default"].history("a", 1)[0].reason == "it hangs"
    (tmp_path / "strict_settings.py").write_text(
        "from tests.settings import *\nLOCKS['default']['OPERATORS'] = {'REASON_REQUIRED': True}\n"
    )
    strict = (*USING, "--settings", "strict_settings", "--pythonpath", str(tmp_path))
    handle = held("a")
    for typed, ends in (("\n", "Give a --reason"), ("x" * 501 + "\n", "at most 500")):
        with Screen("release", "a", *strict, columns=600) as screen:
            screen.see("Reason for the audit:")
            screen.type(typed)
            screen.see(ends)
            assert screen.end() == 2
    with Screen("release", "a", "--noinput", *USING) as screen:
        assert screen.end() == 0
        assert "Reason" not in screen.plain
    assert not handle.owned()


# In a pipe.


def test_pipe_is_not_cut_and_not_coloured(many: list[str]) -> None:
    done = program("list", *USING, COLUMNS="80")
    assert done.code == 0
    for name in many:
        assert name in done.out
    assert not ESCAPES.search(done.out)
    assert "\x1b[" in program("list", "--force-color", *USING).out  # for pagers that show it


@pytest.mark.parametrize(("answer", "code"), [("", 1), ("no\n", 1), ("YES\n", 0)])
def test_question_is_answered_by_another_program(
    server: EmbeddedServer, answer: str, code: int
) -> None:
    handle = held("a")
    done = program("release", "a", *USING, "--format", "json", answer=answer)
    assert done.code == code
    assert "a: " in done.err
    assert "Release 1 lock? The holders are not stopped. [y/N]" in done.err
    assert "Reason" not in done.err
    assert ("Declined: nothing was released" in done.err) is bool(code)
    assert ('"result": "released"' in done.out) is not handle.owned()


def test_reader_that_leaves_early_is_no_error(server: EmbeddedServer) -> None:
    for number in range(2000):
        held(f"product:{number:0200}")
    with subprocess.Popen(
        program_arguments("list", *USING),
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


@pytest.fixture
def partly_down(server: EmbeddedServer, tmp_path: Path) -> tuple[str, ...]:
    """Options for settings with a second alias, whose server does not answer."""
    (tmp_path / "partly_down.py").write_text(
        "from tests.settings import *\n"
        "LOCKS = {'default': LOCKS['default'], 'down': {'LOCATION': 'redis://127.0.0.1:1/0'}}\n"
    )
    return "--settings", "partly_down", "--pythonpath", str(tmp_path)


@pytest.mark.parametrize("words", [("list", "--format", "json"), ("show", "a")])
def test_reader_that_left_is_no_error_when_a_server_is_silent(
    partly_down: tuple[str, ...], words: tuple[str, ...]
) -> None:
    held("a")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        done = subprocess.run(
            program_arguments(*words, *partly_down),
            env=environment(),
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 141
    assert b"BrokenPipeError" not in done.stderr


def test_notices_stand_between_the_lines_of_json(partly_down: tuple[str, ...]) -> None:
    """Where both streams are one, the JSON is whole without the lines of the notices."""
    for number in range(100):  # more than Python buffers
        held(f"product:{number:0200}")
    done = subprocess.run(
        program_arguments("list", "--format", "json", *partly_down),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    written = done.stdout.splitlines()
    notices = [line for line in written if line.startswith(("LOCKS['down']", "CommandError"))]
    assert len(notices) == 2
    assert written[-1] == notices[-1]
    result = json.loads("".join(line for line in written if line not in notices))
    assert len(result["locks"]) == 100


# How it is called.


@pytest.mark.parametrize(
    "words",
    [
        ["--no-color", "list"],
        ["list", "--no-color"],
        ["--no-color", "--using", "default"],
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
        ("--sort lease", "list"),
        ("--sort=lease", "list"),
        ("--sor lease --limit 5", "list"),
        ("--settings shop.down --pythonpath lists -v 2", "list"),
        ("--using runs", "list"),
        ("--using run", "list"),
        ("--using run list --sort lease", "list"),
        ("--using run run x -- show", "run"),
        ("--format json show x", "show"),
        ("--older-than 5m -- runs", "list"),
    ],
)
def test_the_value_of_an_option_is_no_command(line: str, command: str) -> None:
    parsed = Command().create_parser("manage.py", "locks").parse_args(line.split())
    assert (parsed.command, parsed.program) == (command, ["show"] if command == "run" else [])
    assert parsed.using in (None, "run", "runs")


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
        (["relase", "a"], "did you mean 'release'?"),
        (["--sort", "lease", "relase", "a"], "did you mean 'release'?"),
        (["run", "a", "--format", "json", "--", "true"], "locks run: error: unrecognized arg"),
        (["list", "--older-than", "soon"], "'soon' is not a duration"),
        (["list", "--limit", "0"], "'0' is not a whole number from 1"),
    ],
)
def test_wrong_use_is_exit_code_two(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        Command().run_from_argv(["manage.py", "locks", *words])
    out, err = capsys.readouterr()
    assert (out, told in err) == ("", True)


def test_closing_commands_of_the_demo_run_as_printed(server: EmbeddedServer) -> None:
    for _, line in closing_commands(server):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env=environment(PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


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
