"""Programs that hold a lock: ``locks run``, and management commands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from django_redis_lock import lock, locks
from django_redis_lock.management import BUSY, LOST, UNAVAILABLE, _runs
from example_project.embedded import EmbeddedServer
from tests.tools import PATIENCE, alive, eventually, waiters
from tests.tools.console import Screen, arguments, environment, program

TALKER = """
import os, signal, sys
def say(text):
    os.write(1, f"{text}\\n".encode())
def hear(number, frame):
    say(signal.Signals(number).name)
    if number == signal.SIGTERM and sys.argv[1:] != ["stubborn"]:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, hear)
say(f"{os.environ['DJANGO_REDIS_LOCK_FENCE']} {os.getpid()} {os.getpgid(0)}")
while True:
    signal.pause()
"""
"""A program that says what it is told, until it ends with code 7."""


class Running:
    """A process with its output, of ``locks run`` by default."""

    started: ClassVar[list[subprocess.Popen[str]]] = []
    rest = ""
    """What it has written to standard output at last."""

    def __init__(self, *words: str, command: list[str] | None = None, **more: str) -> None:
        self.process = subprocess.Popen(
            command or arguments("run", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**more),
        )
        self.started.append(self.process)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, *numbers: int) -> tuple[int, str]:
        """Send it signals; return its exit code, and what it wrote to standard error."""
        for number in numbers:
            self.process.send_signal(number)
        self.rest, told = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, told


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    """Let programs have the signals that ``nohup``, or a shell in the background, has us ignore."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    while Running.started:
        with Running.started.pop() as process:
            process.kill()


@contextlib.contextmanager
def talking(name: str, *words: str, argument: str = "") -> Iterator[tuple[Running, int, int]]:
    """Run the talker while the lock is held; yield the process, its fence and the talker's id."""
    talker = [sys.executable, "-c", TALKER, *argument.split()]
    running = Running(name, *words, "--", *talker)
    fence, pid, group = map(int, running.line().split())
    assert pid == group
    try:
        yield running, fence, pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_that_of_the_program(
    server: EmbeddedServer, name: str, words: list[str], code: int
) -> None:
    done = program("run", name, "--no-wait", "--", *words)
    assert (done.code, done.out) == (code, "")
    assert bool(done.err) is (code in (126, 127))
    assert locks["default"].holder(name) is None


def test_the_program_has_the_fence_and_its_options(server: EmbeddedServer, name: str) -> None:
    """An option behind the two dashes is one of the program."""
    text = 'echo "$DJANGO_REDIS_LOCK_FENCE" "$@"'
    done = program("run", name, "--", "sh", "-c", text, "sh", "--no-wait", "--", "list")
    fence, *words = done.out.split()
    assert words == ["--no-wait", "--", "list"]
    with lock(name) as later:
        assert 0 < int(fence) < later.fence


def test_signals_are_passed_on(server: EmbeddedServer, name: str) -> None:
    with talking(name) as (running, fence, _):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            running.process.send_signal(number)
            assert running.line() == number.name
        running.process.send_signal(signal.SIGTSTP)  # it must go on renewing
        assert locks["default"].holder(name).fence == fence
        assert running.end(signal.SIGTERM) == (7, "")
        assert locks["default"].holder(name) is None


def test_the_lock_is_held_until_the_process_group_has_ended(
    server: EmbeddedServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends at once, and what it has started a while later."""
    words = ["sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", TALKER, "stubborn"]
    running = Running(name, "--grace", "60", "--", *words)
    fence, child, program = map(int, running.line().split())
    try:
        running.process.send_signal(signal.SIGTERM)
        assert running.line() == "SIGTERM"
        eventually(lambda: not alive(program))
        assert running.process.poll() is None
        assert locks["default"].holder(name).fence == fence
        monkeypatch.setattr(os, "listdir", lambda path: [])  # as hidepid hides the child
        assert _runs(program)
    finally:
        os.kill(child, signal.SIGKILL)
    assert running.end() == (128 + signal.SIGTERM, "")
    assert locks["default"].holder(name) is None


def started_with(what: str, *command: str) -> Running:
    """Run a program in a process that does something before."""
    text = f"import ctypes, os, signal, sys; {what}; os.execv(sys.argv[1], sys.argv[1:])"
    return Running(command=[sys.executable, "-c", text, *command])


@pytest.mark.parametrize("depth", [1, 2])
def test_orphans_of_the_group_that_have_ended_are_collected(
    server: EmbeddedServer, name: str, depth: int
) -> None:
    """They would count as alive. The first process here inherits those that no other collects."""
    words = ["sh", "-c", "sleep 60 & sleep 60 & echo runs; wait"]
    for number in range(depth):
        words = arguments("run", f"{name}-{number}", "--grace", "60", "--", *words)
    running = started_with("ctypes.CDLL(None).prctl(36, 1)", *words)
    assert running.line() == "runs"
    assert running.end(signal.SIGTERM) == (128 + signal.SIGTERM, "")


def test_a_process_that_was_told_to_ignore_its_children(server: EmbeddedServer, name: str) -> None:
    command = arguments("run", name, "--", "sh", "-c", "exit 3")
    running = started_with("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", *command)
    assert running.end() == (3, "")


@pytest.mark.parametrize("words", [["--no-wait"], ["--wait", "0.1"]])
def test_a_second_runs_nothing(server: EmbeddedServer, name: str, words: list[str]) -> None:
    with lock(name, timeout=60):
        done = program("run", name, *words, "--", "echo", "ran")
    assert (done.code, done.out) == (BUSY, "")
    held = rf"CommandError: Lock '{name}' is held by .*:{os.getpid()} .* since .* UTC"
    assert re.fullmatch(rf"{held}, so echo did not run\.", done.err.strip())


def test_a_second_waits_by_default(server: EmbeddedServer, name: str) -> None:
    with lock(name, timeout=60):
        running = Running(name, "--", "echo", "ran")
        eventually(lambda: waiters(name) == 1)
    assert running.line() == "ran"
    assert running.end() == (0, "")


@pytest.mark.parametrize(
    ("around", "nested"),
    [
        (["NAME", "NAME"], "echo"),
        (["NAME", "b", "NAME --wait 60"], "echo"),
        (["b", "import:NAME"], "this command"),
        (["NAME", "b"], ""),
        (["NAME", "NAME --using url"], ""),
    ],
)
def test_what_holds_the_lock_around_a_program_is_not_waited_for(
    server: EmbeddedServer, name: str, around: list[str], nested: str
) -> None:
    words = ["echo", "ran"]
    if nested == "this command":
        words = [sys.executable, "-m", "tests.apps.commands", name]
    for each in reversed(around):
        words = arguments("run", *each.replace("NAME", name).split(), "--", *words)
    running = Running(command=words)
    code, told = running.end()
    text = f" UTC, which started this process and waits for it, so {nested} did not run."
    assert (code, running.rest, text in told) == (
        (BUSY, "", True) if nested else (0, "ran\n", False)
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(server: EmbeddedServer, name: str, number: int) -> None:
    with lock(name, timeout=60):
        running = Running(name, "--", "echo", "ran")
        eventually(lambda: waiters(name) == 1)
        assert running.end(signal.SIGTSTP, number) == (128 + number, "")
        eventually(lambda: waiters(name) == 0)


@pytest.mark.parametrize(("argument", "grace"), [("", "60"), ("stubborn", "2")])
def test_a_program_whose_lock_is_lost_is_ended(
    server: EmbeddedServer, name: str, argument: str, grace: str
) -> None:
    """It gets SIGTERM, and if it goes on SIGKILL."""
    words = ("--timeout", "3", "--grace", grace)
    with talking(name, *words, argument=argument) as (running, _, pid):
        holder = locks["default"].holder(name)
        assert locks["default"].force_release(name, token_id=holder.token_id, by="a test")
        assert running.line() == "SIGTERM"
        code, told = running.end()
        assert code == LOST
        assert f"Lost lock '{name}'; sent SIGTERM to {sys.executable}." in told
        assert f"CommandError: Lost lock '{name}' while {sys.executable} ran." in told
        assert not alive(pid)


def test_a_program_whose_server_is_gone_is_ended(
    own_server: EmbeddedServer, name: str, settings: Any
) -> None:
    settings.LOCKS = {"default": {"LOCATION": own_server.url()}}
    talker = [sys.executable, "-c", TALKER]
    running = Running(
        *(name, "--timeout", "3", "--", *talker),
        DJANGO_SETTINGS_MODULE="tests.apps.celery.kept",
        LOCK_TEST_KEPT_PORT=str(own_server.port),
    )
    assert running.line()
    own_server.kill()
    assert running.line() == "SIGTERM"
    code, told = running.end()
    assert (code, "Lost lock" in told) == (LOST, True)
    again = program(
        *("run", name, "--", "echo", "ran"),
        DJANGO_SETTINGS_MODULE="tests.apps.celery.kept",
        LOCK_TEST_KEPT_PORT=str(own_server.port),
    )
    assert (again.code, again.out, "Could not run echo: " in again.err) == (UNAVAILABLE, "", True)


def test_on_a_terminal(server: EmbeddedServer, name: str) -> None:
    """The program may ask."""
    asks = "print('so', input('Sure? '))"
    with Screen("run", name, "--", sys.executable, "-c", asks) as screen:
        screen.see("Sure?")
        screen.type("yes\n")
        screen.see("so yes")
        assert screen.end() == 0


# Management commands that hold a lock.


def importing(name: str) -> Running:
    return Running(command=[sys.executable, "-m", "tests.apps.commands", name])


def test_a_second_command_names_the_first(server: EmbeddedServer, name: str) -> None:
    first = importing(name)
    fence = int(first.line())
    second = importing(name)
    code, told = second.end()
    assert code == BUSY
    where = rf"Lock 'import:{name}' is held by .*:{first.process.pid} .* since .* UTC"
    assert re.fullmatch(rf"CommandError: {where}, so this command did not run\.", told.strip())
    assert locks["default"].holder(f"import:{name}").fence == fence
    other, third = importing(f"{name}-2"), importing(f"{name}-3")
    assert int(other.line()) > fence
    assert third.line()
    ends = [(signal.SIGTERM, first), (signal.SIGHUP, other), (signal.SIGINT, third)]
    for number, running in ends:
        assert running.end(number) == (128 + number, "")
        assert running.rest == "ends\n"
    assert [*locks["default"].holders()] == []
