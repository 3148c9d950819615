"""A reader who follows a tutorial: types its commands, saves its files, compares its outputs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from example_project.keeper import Keeper
from tests.tools.docs import TUTORIAL, Block, commands

COMMAND_SECONDS = 120
"""How long a command may take, or a server until it is up; the longest installs packages."""
_NOT_READERS = ("DJANGO_", "PYTHON", "VIRTUAL_ENV", "LOAD_", "SHOP_", "PYTEST_")
"""What the tests may have in their environment, and a reader has not."""
_VARYING = re.compile(
    r"(?:\b(?:\d+(?:\.\d+)?(?:ms|min|[smhd]))+\b ?)+"  # a duration, such as 7.3s, 1m03s, 1m 3s
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4,12})+"  # the id of a task
    r"|\d+(?:\.\d+)?"
)


class ReaderError(AssertionError):
    """The tutorial said something else than what happened."""


class Terminal:
    """A shell: what one command exports, the next one has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_READERS)}
        self.environment = {**kept, "PYTHONUNBUFFERED": "1"}

    def run(self, command: str) -> str:
        left = self.directory / ".environment"
        finished = subprocess.run(
            ["bash", "-c", f"{command}\nstatus=$?\nenv -0 > '{left}'\nexit $status"],
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
        return finished.stdout


@dataclass
class Program:
    """A program that goes on in a terminal of its own, and says ``ready`` once it is up."""

    command: str
    ready: str
    terminal: Terminal
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, keeper: Keeper) -> None:
        """Start it, anew if it runs; a worker would first finish its task of an hour."""
        if self.process is not None:
            keeper.stop(self.process, grace=0)
        with self.log.open("wb") as output:
            process = self.process = keeper.spawn(
                *("bash", "-c", f"exec {self.command}"),
                cwd=self.terminal.directory,
                env=self.terminal.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + COMMAND_SECONDS
        while self.ready not in self.output():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ReaderError(f"$ {self.command}\n{self.output()}")
            time.sleep(0.05)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Reader:
    """A folder and terminals to follow a tutorial; ``instead`` replaces some of its words."""

    def __init__(self, directory: Path, instead: dict[str, str]) -> None:
        self._directory, self._instead = directory, instead
        self._programs: list[Program] = []
        self._changed = False

    def __enter__(self) -> Self:
        self._keeper, self._first = Keeper(), Terminal(self._directory)
        return self

    def __exit__(self, *error: object) -> None:
        self._keeper.close()

    def follow(self, block: Block) -> None:
        """Do what a block of the tutorial tells its reader to do."""
        text, path = block.text, self._directory / block.what
        for written, typed in self._instead.items():
            text = text.replace(written, typed)
        if block.how == "append":
            self._changed = self._changed or path.exists()
            with path.open("a") as file:
                file.write(f"\n\n{text}")
        elif block.how == "save":
            path.write_text(text)
            self._changed = True
        elif block.how == "background":
            self._start(text, block.what)
        elif block.language == "console":
            self._type(text, varies=block.how == "varies", line=block.line)
        elif f"<!-- test\n{block.text}-->" in TUTORIAL.read_text():
            self._first.run(f"python - <<'END_OF_THE_BLOCK'\n{text}\nEND_OF_THE_BLOCK")
        else:
            raise ReaderError(f"line {block.line} is neither typed nor saved")

    def _start(self, text: str, ready: str) -> None:
        *before, (command, _) = commands(text)
        terminal = Terminal(self._directory)
        for each, _ in before:
            terminal.run(each)
        log = self._directory.parent / f"terminal-{len(self._programs) + 2}.log"
        self._programs.append(Program(command, ready, terminal, log))
        self._programs[-1].start(self._keeper)

    def _type(self, text: str, *, varies: bool, line: int) -> None:
        for program in self._programs:
            # The development server starts anew by itself, too, some time after a change.
            if self._changed and "runserver" in program.command:
                program.start(self._keeper)
        self._changed = False
        for command, expected in commands(text):
            got = self._first.run(command)
            same = shape(got) == shape(expected) if varies else got == expected
            if expected and not same:
                logs = "\n".join(f"== {one.command}\n{one.output()}" for one in self._programs)
                raise ReaderError(
                    f"line {line}: $ {command}\nThe tutorial shows:\n{expected}\nIt was:\n{got}\n"
                    f"{logs}"
                )


def shape(output: str) -> str:
    """Return an output without what differs from run to run: numbers, ids, and widths."""
    return " ".join(_VARYING.sub(" ", output).split())
