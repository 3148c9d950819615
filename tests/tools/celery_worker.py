"""A real Celery worker for tests, and the talk between its tasks and a test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import redis

from django_redis_lock import locks
from tests.settings import server_url
from tests.tools import ROOT, eventually

WAIT = 20
"""Seconds after which what a test waits for is taken not to come."""


class Worker:
    """A running worker: its parent process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self, words: str) -> list[str]:
        """Return the lines of the log that hold some words."""
        return [line for line in self.log.read_text().splitlines() if words in line]


@contextlib.contextmanager
def running_worker(
    directory: Path,
    *options: str,
    app: str = "tests.apps.celery_app",
    pool: str = "prefork",
    concurrency: int = 4,
    queue: str = "tests",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Run a worker on the session's server, of the app of a module, until the block is left.

    It leads a process group of its own, which a test can kill as a whole.
    """
    log = directory / f"worker-{pool}.log"
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "-P", pool, "-Q", queue]
    quiet = ["-l", "INFO", "--without-gossip", "--without-mingle"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "-c", str(concurrency), *quiet, *options],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONDEVMODE": "",
                **(environment or {}),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            eventually(lambda: " ready." in log.read_text(), "the worker's readiness")
            yield Worker(process, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def events() -> redis.Redis:
    """Return a client of the database in which tasks and tests signal to each other."""
    return redis.Redis.from_url(server_url(12), decode_responses=True, socket_timeout=None)


def tell_and_wait(what: str) -> str:
    """Say that a task runs, and wait until the test lets it end; return what the test said."""
    tell(what)
    with events() as client:
        heard = client.blpop([f"go:{what}"], timeout=WAIT)
    return heard[1] if heard else "nobody said go"


def tell(what: str) -> None:
    """Say that a task runs, in which process."""
    with events() as client:
        client.rpush(f"started:{what}", os.getpid())


def started(client: redis.Redis, what: str) -> int:
    """Wait until a task runs; return the process id of its worker child."""
    said = client.blpop([f"started:{what}"], timeout=WAIT)
    assert said is not None, f"{what} never started"
    return int(said[1])


def go(client: redis.Redis, what: str, times: int = 1, say: str = "go") -> None:
    """Let tasks go on, which get to know what is said."""
    client.rpush(f"go:{what}", *[say] * times)


def free(name: str) -> None:
    """Wait until a lock is free."""
    eventually(lambda: locks["default"].holder(name) is None, f"{name} free")
