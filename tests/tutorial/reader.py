"""Somebody who follows a tutorial: types its commands, saves its files, compares its outputs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from example_project.keeper import Keeper
from tests.tools.docs import TUTORIAL, Block, commands

COMMAND_SECONDS = 120
"""How long a command may take, or a server until it is up; the longest installs packages."""
_NOT_A_READERS = ("DJANGO_", "PYTHON", "VIRTUAL_ENV", "LOAD_", "SHOP_", "PYTEST_")
"""What the tests may have in their environment, and a reader has not."""
_VARYING = re.compile(
    r"(?:\b(?:\d+(?:\.\d+)?(?:ms|min|[smhd]))+\b ?)+"  # a duration, such as 7.3s, 1m03s, 1m 3s
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4,12})+"  # the id of a task
    r"|\d+(?:\.\d+)?"
)


class ReaderError(AssertionError):
    """The tutorial said something else than what happened."""


@dataclass
class Terminal:
    """A shell: what one command exports, the next one has."""

    directory: Path
    environment: dict[str, str]

    def run(self, command: str) -> tuple[str, str]:
        """Run a command to its end; return its output and what it said of errors."""
        left = self.directory / ".environment"
        script = f"{command}\nstatus=$?\nenv -0 > '{left}'\nexit $status"
        finished = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if finished.returncode:
            raise ReaderError(f"$ {command}\n{finished.stdout}\n{finished.stderr}")
        pairs = (entry.partition("=") for entry in left.read_text().split("\0") if entry)
        self.environment = {name: value for name, _, value in pairs}
        left.unlink()
        return finished.stdout, finished.stderr


@dataclass
class Running:
    """A program that goes on in a terminal of its own, and says something once it is up."""

    command: str
    ready: str
    terminal: Terminal
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, keeper: Keeper) -> None:
        with self.log.open("wb") as output:
            process = self.process = keeper.spawn(
                *("bash", "-c", f"exec {self.command}"),
                cwd=self.terminal.directory,
                env=self.terminal.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + COMMAND_SECONDS
        while self.ready not in self.told():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ReaderError(f"$ {self.command}\n{self.told()}")
            time.sleep(0.05)

    def stop(self, keeper: Keeper) -> None:
        """Close its terminal, at once: a worker would first finish its task of an hour."""
        if self.process is not None:
            keeper.stop(self.process, grace=0)

    def told(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Reader:
    """The folder in which a tutorial is followed, and its terminals.

    `instead` are words of the tutorial and what is typed in their place.
    """

    directory: Path
    instead: dict[str, str]
    _running: list[Running] = field(default_factory=list)
    _reload: bool = False

    def __enter__(self) -> Self:
        self._keeper = Keeper()
        self._first = Terminal(self.directory, _plain_environment())
        return self

    def __exit__(self, *error: object) -> None:
        self._keeper.close()

    def follow(self, block: Block) -> None:
        """Do what a block of the tutorial tells its reader to do."""
        text = block.text
        for written, typed in self.instead.items():
            text = text.replace(written, typed)
        if block.how == "append":
            path = self.directory / block.what
            self._reload = self._reload or path.exists()
            with path.open("a") as file:
                file.write(f"\n\n{text}")
        elif block.how == "save":
            (self.directory / block.what).write_text(text)
            self._reload = True
        elif block.how == "background":
            self._start(text, block.what)
        elif block.language == "console":
            self._type(text, varies=block.how == "varies", line=block.line)
        elif f"<!-- test\n{block.text}-->" in TUTORIAL.read_text():
            self._first.run(f"python - <<'END_OF_THE_BLOCK'\n{text}\nEND_OF_THE_BLOCK")
        else:
            raise ReaderError(f"line {block.line} is neither typed nor saved")

    def logs(self) -> str:
        return "\n".join(f"== {program.command}\n{program.told()}" for program in self._running)

    def _start(self, text: str, ready: str) -> None:
        *before, (command, _) = commands(text)
        environment = _plain_environment()
        terminal = Terminal(self.directory, environment)
        for each, _ in before:
            terminal.run(each)
        log = self.directory.parent / f"terminal-{len(self._running) + 2}.log"
        self._running.append(Running(command, ready, terminal, log))
        self._running[-1].start(self._keeper)

    def _type(self, text: str, *, varies: bool, line: int) -> None:
        if self._reload:
            self._load_changes()
        for command, expected in commands(text):
            try:
                got, _ = self._first.run(command)
            except ReaderError as error:
                raise ReaderError(f"line {line}: {error}\n{self.logs()}") from None
            same = shape(got) == shape(expected) if varies else got == expected
            if expected and not same:
                raise ReaderError(
                    f"line {line}: $ {command}\nThe tutorial shows:\n{expected}\nIt was:\n{got}\n"
                    f"{self.logs()}"
                )

    def _load_changes(self) -> None:
        """Start the development server anew, which it does by itself some time after a change."""
        for program in self._running:
            if "runserver" in program.command:
                program.stop(self._keeper)
                program.start(self._keeper)
        self._reload = False


def shape(output: str) -> str:
    """Return an output without what differs from run to run: numbers, ids, and widths."""
    return " ".join(_VARYING.sub(" ", output).split())


def _plain_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_A_READERS)}
    return {**kept, "PYTHONUNBUFFERED": "1"}
