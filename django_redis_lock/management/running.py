"""``locks run``: run a program while a lock is held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from time import monotonic, sleep
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.handler import DEFAULT_ALIAS
from django_redis_lock.management.locked import ENDING, HELD, end, holding, make_lock, signals_to
from django_redis_lock.management.output import Backends, Terminal, usage
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.signals import lock_lost
from django_redis_lock.support.text import visible

HANDLED = (*ENDING, "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP")
"""Signals that are passed on, except Ctrl-Z: a process that is stopped renews no lease."""


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Run the program with the lock held, and exit with its code."""
    words = options["program"]
    if not words:
        raise usage("Say what to run, after two dashes: locks run NAME -- PROGRAM [ARGUMENT ...]")
    using = options["using"] or DEFAULT_ALIAS
    handle = make_lock(options["name"], options["timeout"], options["wait"], using)
    Backends(using, terminal)  # says if it excludes no other process
    program = Program(words, handle, options["grace"], terminal)
    with signals_to(program.on_signal, HANDLED), holding(handle, visible(words[0])):
        code = program.run()
    if code:
        sys.exit(code)


class Program:
    """A program that runs in a session, and so in a process group, of its own."""

    def __init__(self, words: list[str], handle: Lock, grace: float, terminal: Terminal) -> None:
        self._words, self._handle, self._grace, self._terminal = words, handle, grace, terminal
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._told = False, False
        self._due: deque[int] = deque()  # signals that it gets once it has started
        self._killer = threading.Timer(grace, self._send, [signal.SIGKILL])
        self._killer.daemon = True
        lock_lost.connect(self._on_lost)  # before the lock is acquired: none may go unheard

    def run(self) -> int:
        """Run it, and return its exit code, or 128 and the number of the signal that ended it."""
        self._starts = True
        held, fence = f"{os.environ.get(HELD, '')} {self._handle.token_id}", str(self._handle.fence)
        environment = {**os.environ, "DJANGO_REDIS_LOCK_FENCE": fence, HELD: held}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the operator has given
                self._words, env=environment, start_new_session=True
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as of a shell
            text = f"{visible(self._words[0])} can't be run: {error.strerror}."
            raise CommandError(text, returncode=code) from error
        self._send()
        code = self._process.wait()
        until = monotonic() + self._grace * self._told
        with suppress(ProcessLookupError, PermissionError):
            while monotonic() < until or self._killer.is_alive():  # others of its group end later
                os.killpg(self._process.pid, 0)
                sleep(0.05)
        lock_lost.disconnect(self._on_lost)
        self._killer.cancel()
        return 128 - code if code < 0 else code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on, or give up the wait for the lock."""
        if number == getattr(signal, "SIGTSTP", None):
            return
        if not self._starts:
            end(number, frame)
        self._send(number)

    def _on_lost(self, lock: Any, **kwargs: Any) -> None:
        if lock is self._handle:
            self._killer.start()
            self._send(signal.SIGTERM)
            name, what = visible(lock.name), visible(self._words[0])
            self._terminal.notice(f"Lock {name!r} was lost: {what} is told to end.")

    def _send(self, *numbers: int) -> None:
        """Send signals to the process group, with those that came before it was started."""
        self._told |= bool(numbers)
        self._due += numbers
        with suppress(ProcessLookupError, PermissionError, IndexError):
            while self._process is not None:
                os.killpg(self._process.pid, self._due.popleft())
