"""What tests do again and again: run in the background, wait for an event, count commands."""

from __future__ import annotations

import ast
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import redis
from django.core.checks import run_checks
from django.dispatch import Signal

from django_redis_lock import locks, semaphore
from django_redis_lock.backends.renewal import ServerRenewer, renewer
from django_redis_lock.protocol.calls import Inspect
from tests.contracts.capabilities import lacks

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
"""Seconds after which an event that a test waits for is taken not to come."""


def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module. Nothing is collected meanwhile: CPython 3.11 fails where
    a finalizer formats a traceback, which parses the source, in the midst of it
    (python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """Return the first true value of ``condition``; fail if there is none in time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        time.sleep(0.002)


def stored(backend: Any, name: str) -> Any:
    return backend.call(Inspect([name]))[1]


def waiters(name: str, using: str = "default") -> int:
    """Return the number of waiters of a lock; without a queue, of those in this process."""
    backend = locks[using]
    if "queue" in lacks(backend):
        return sum(waiter.request.name == name for waiter in backend.registry_for("").present())
    holder = backend.holder(name)
    return 0 if holder is None else holder.waiters


def enqueue(
    client: redis.Redis, name: str, *records: str, process: str = "c0-1", prefix: str = "lock"
) -> None:
    """Have a process, as of a far host, wait for a lock; it is heard now, and never again."""
    now = round(time.time() * 1000)
    entries = {f"{n:x} 10000 - {record}": n for n, record in enumerate(records, 1)}
    client.zadd(f"{prefix}-waiters:{process}:{name}", entries)
    client.hset(f"{prefix}-tokens:{process}:{name}", mapping={f"{n}": f"t{n}" for n in range(1, 9)})
    client.zadd(f"{prefix}-queue:{name}", {process: 1})
    client.zadd(f"{prefix}-seen", {process: now})


def permits(name: str, number: int, limit: int = 5) -> list[Any]:
    taken = [semaphore(name, limit, timeout=60) for _ in range(number)]
    assert all(permit.acquire(blocking=False) for permit in taken)
    return taken


def findings() -> list[Any]:
    """Return what the system checks say of LOCKS, and not of tasks that other tests imported."""
    with patch("django_redis_lock.celery.checks.active_apps", list):
        return [item for item in run_checks() if (item.id or "").startswith("django_redis_lock.")]


def renewing(using: str = "default") -> list[ServerRenewer]:
    """Return what renews the leases of a backend, one for each server."""
    return [item for item in [*renewer.servers.values()] if item.backend is locks[using]]


def owes(using: str = "default") -> bool:
    """Whether a release or an entry of the audit has still to be sent in the background."""
    return any(item.withdrawals for item in renewing(using))


def state_of(pid: int) -> str:
    """Return the letter for the state of a process: ``S`` while it sleeps, ``X`` if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and not yet collected does not."""
    return state_of(pid) not in "ZX"


def leave_no_lease() -> None:
    """Stop renewing leases that a test has left, drop what is still to be sent, and close all."""
    renewer.entries.clear()
    for server in [*renewer.servers.values()]:
        server.withdrawals.clear()
    locks.reset()


class Background(threading.Thread):
    """A function in a thread, whose result or exception ``outcome()`` gives."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def outcome(self) -> Any:
        """Wait for the end; return the result or raise the exception."""
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self._function} did not end"
        if self._error is not None:
            raise self._error
        return self._result


def queue(*handles: Any) -> list[Background]:
    """Let handles wait, one behind the other and behind those that do already."""
    started = []
    for handle in handles:
        waiting = partial(handle.backend.waiting, handle.name)
        ahead, new = len(waiting()), Background(partial(handle.acquire, blocking_timeout=PATIENCE))
        eventually(lambda: len(waiting()) > ahead or not new.is_alive(), "it waits")  # noqa: B023
        started.append(new)
    return started


def let_go(name: str, started: list[Background]) -> None:
    """Clear the limit of a lock, and release it until each waiter has had its turn."""
    locks["default"].set_limit(name, None)
    while any(each.is_alive() for each in started):
        for holder in list(locks["default"].holders_of([name])):
            locks["default"].force_release(name, holder.token_id)
    assert all(each.outcome() for each in started)


UNMEASURED = {"COVERAGE_PROCESS_CONFIG": ""}
"""The environment of a program with greenlets: their lines would be counted one to another."""


class Child:
    """A Python program in a process of its own, with Django set up for the tests. It says lines on
    its standard output with ``say(...)`` and hears lines with ``hear()``."""

    HEAD = """
        import os, sys, threading, time
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        {before}
        import django
        django.setup()
        from django_redis_lock import lock, locks
        from django_redis_lock.exceptions import *
        def say(*what): print(*what, flush=True)
        def hear(): return sys.stdin.readline().strip()
    """

    def __init__(self, program: str, *args: str, before: str = "") -> None:
        head = textwrap.dedent(self.HEAD).replace("{before}", before)
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(program), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(UNMEASURED if "monkey" in before else {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Stop the program, and wait until all of its threads have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int:
        return self.process.wait(PATIENCE)


QUEUED = """
    held = lock(sys.argv[1], timeout=float(sys.argv[2]), wait=sys.argv[3])
    held.acquire()
    say("acquired", held.fence, time.monotonic())
    hear()
    held.release()
    say("released")
"""


@contextmanager
def queued(
    name: str, wait: str = "queue", timeout: float = 20, *, program: str = QUEUED, before: str = ""
) -> Iterator[Child]:
    """Yield a process that waits for a held lock; it says when it has the lock, and releases it
    when it is told to."""
    ahead = waiters(name)
    with Child(program, name, str(timeout), wait, before=before) as child:
        eventually(lambda: waiters(name) == ahead + 1)
        yield child


@contextmanager
def told(*signals: Signal) -> Iterator[list[dict[str, Any]]]:
    """Fill a list with the arguments of the signals that are sent during the block."""
    calls: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        calls.append(kwargs)

    for signal_ in signals:
        signal_.connect(receive)
    try:
        yield calls
    finally:
        for signal_ in signals:
            signal_.disconnect(receive)


@contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal of the system during the block; an exception as the handler is raised."""

    def interrupt(signum: int, frame: object) -> None:
        raise handler

    raises = isinstance(handler, type) and issubclass(handler, BaseException)
    trace = sys.gettrace()
    if callable(handler):
        # A tool that measures coverage may take a lock of its own at any line. If the handler
        # raises at that moment, it never gives the lock back.
        sys.settrace(None)
    before = signal.signal(number, interrupt if raises else handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)
        sys.settrace(trace)


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether a signal handler interrupts a finalizer, whose exceptions Python prints and drops."""
    while frame is not None:
        # The callbacks of weak references are those of the standard library.
        if frame.f_code.co_name in {"__del__", "_remove", "remove"}:
            return True
        frame = frame.f_back
    return False


@contextmanager
def counted(client: redis.Redis) -> Iterator[dict[str, int]]:
    """Fill a dict with how often the server ran each command during the block."""
    counts: dict[str, int] = {}
    client.config_resetstat()
    yield counts
    for command, numbers in client.info("commandstats").items():
        counts[command.removeprefix("cmdstat_")] = numbers["calls"]


def connections(client: redis.Redis, kind: str = "normal") -> set[str]:
    """Return the ids of the server's connections: ``normal`` ones, or ``pubsub`` that listen."""
    return {entry["id"] for entry in client.client_list(_type=kind)}
