"""Running ``manage.py locks``: in this process, as a program, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from io import StringIO
from typing import Any, Self

from django.core.management import call_command
from django.core.management.base import CommandError

from django_redis_lock import lock
from tests.tools import PATIENCE, ROOT

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def held(name: str, timeout: float | None = 60, **options: Any) -> Any:
    handle = lock(name, timeout, **options)
    assert handle.acquire(blocking=False)
    return handle


def read(done: Done, name: str) -> Any:
    """Return what is under a name in an output of JSON, of which nothing is missing."""
    answer = json.loads(done.out)
    assert (answer["schema"], answer["not_known"]) == (1, [])
    return answer[name]


def command(*words: str, **options: Any) -> Done:
    out, err = StringIO(), StringIO()
    try:
        call_command("locks", *words, stdout=out, stderr=err, **options)
    except CommandError as error:
        return Done(error.returncode, out.getvalue(), err.getvalue() + str(error))
    return Done(0, out.getvalue(), err.getvalue())


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", "django", "locks", *words]


def environment(**more: str) -> dict[str, str]:
    ours = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    of_terminals = {"COLUMNS", "LINES", "NO_COLOR", "DJANGO_COLORS"}
    for variable in of_terminals | {"PYTHONDEVMODE", "PYTHONUNBUFFERED"}:
        ours.pop(variable, None)
    return {**ours, **more}


def program(*words: str, **more: str) -> Done:
    finished = subprocess.run(
        arguments(*words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**more),
        timeout=60,
        check=False,
    )
    return Done(finished.returncode, finished.stdout, finished.stderr)


class Screen:
    """``locks`` as a program on a terminal of its own."""

    def __init__(self, *words: str, **more: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            arguments(*words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm", **more),
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def plain(self) -> str:
        """What was seen, without colours and movements."""
        return ESCAPES.sub("", self.seen).replace("\r\n", "\n")

    def see(self, text: str) -> str:
        """Wait until a text was written after all that was looked at; return what was new."""
        start = len(self.seen)
        deadline = time.monotonic() + PATIENCE
        while text not in ESCAPES.sub("", self.seen[start:]):
            assert time.monotonic() < deadline, f"never seen: {text}\n{self.seen[start:]}"
            assert self._read(deadline), f"ended without: {text}\n{self.seen[start:]}"
        return self.seen[start:]

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            new = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other end is closed
            return False
        self.seen += new.decode(errors="replace")
        return bool(new)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)
