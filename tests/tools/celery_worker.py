"""A real Celery worker for tests, and what its tasks and a test say to each other."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import pools

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import QUEUE_NAME, apps
from tests.settings import server_url
from tests.tools import ROOT, UNMEASURED, eventually

APP = "tests.apps.celery.app"
SETTINGS = "tests.apps.celery.settings"
WAIT = 20
"""Seconds after which a test gives up waiting."""


class Worker:
    """A worker, or a beat, which leads a process group that a test can kill as a whole."""

    def __init__(self, log: Path, *words: str, **environment: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONDEVMODE": "", **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if text in line]


@contextlib.contextmanager
def running_worker(
    directory: Path,
    *options: str,
    app: str = APP,
    pool: str = "prefork",
    concurrency: int = 4,
    queue: str = QUEUE_NAME,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Run a worker on the session's server until the block is left."""
    words = ("-A", app, "worker", "-l", "INFO", "-P", pool, "-Q", queue, "-c", str(concurrency))
    settings = {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "C_FORCE_ROOT": "1",  # it unpickles what these tests have sent
        **(UNMEASURED if pool in ("gevent", "eventlet") else {}),
        **(environment or {}),
    }
    quiet = ("--without-gossip", "--without-mingle")
    worker = Worker(directory / f"worker-{pool}.log", *words, *quiet, *options, **settings)
    try:
        eventually(
            lambda: worker.lines(" ready.") or worker.process.poll() is not None,
            "the worker's readiness",
        )
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
        try:
            worker.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()


@contextlib.contextmanager
def worker_of_module(server: EmbeddedServer, directory: Path, **options: Any) -> Iterator[Worker]:
    """Run a worker for the tests of a module, on an empty server; see ``running_worker``."""
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()
    with running_worker(directory, **options) as worker:
        yield worker
    locks.reset()
    disconnect(*apps)


def disconnect(*apps: Celery) -> None:
    """Close the connections of apps, so that the next module that uses them begins anew."""
    gc.collect()  # results unsubscribe when they are collected
    for app in apps:
        app.pool.force_close_all()
        app.pool._closed = False  # it is used again; before kombu 5.4 it can't be told so
        for group in (pools.producers, pools.connections):
            with contextlib.suppress(KeyError):
                del group[app.connection_for_write()]
        for backend in {id(task.backend): task.backend for task in app.tasks.values()}.values():
            if hasattr(backend, "client"):
                backend.client.connection_pool.disconnect()
        app._after_fork()


# Between a task and its test.


def events() -> redis.Redis:
    """Return a client of the database through which tasks and tests talk."""
    return redis.Redis.from_url(server_url(12), decode_responses=True, socket_timeout=None)


def tell_and_wait(what: str) -> str:
    """Report that a task runs, and wait until the test lets it go on; return what it said."""
    tell(what)
    with events() as client:
        heard = client.blpop([f"go:{what}"], timeout=WAIT)
    return heard[1] if heard else "nobody said go"


def tell(what: str) -> None:
    """Report that a task runs, and in which process."""
    with events() as client:
        client.rpush(f"started:{what}", os.getpid())


def started(client: redis.Redis, what: str) -> int:
    """Wait until a task runs; return the process id of its worker child."""
    said = client.blpop([f"started:{what}"], timeout=WAIT)
    assert said is not None, f"{what} never started"
    return int(said[1])


def go(client: redis.Redis, what: str, times: int = 1, say: str = "go") -> None:
    client.rpush(f"go:{what}", *[say] * times)


def record(what: str, value: object) -> None:
    with events() as client:
        client.rpush(f"ran:{what}", str(value))


@contextlib.contextmanager
def counted(what: str) -> Iterator[None]:
    """Leave a note of how many runs are in this block, this one included."""
    with events() as client:
        client.rpush(f"ran:{what}", client.incr(f"inside:{what}"))
        try:
            yield
        finally:
            client.decr(f"inside:{what}")


def ran(client: redis.Redis, what: str) -> list[str]:
    return client.lrange(f"ran:{what}", 0, -1)


# Locks and messages.


def key_of(task: Any, what: str) -> str:
    return f"{task.name}:{what}"


def held(what: str) -> list[str]:
    return sorted(holder.name for holder in locks["default"].holders(pattern=f"*{what}*"))


def all_free(what: str) -> None:
    """Wait until no lock whose name contains a text is held, by a run or a message."""
    # A list misses the lock that a run takes between the reading of names and of holders.
    eventually(lambda: not held(what) and not held(what), f"{what} free")


def free(name: str) -> None:
    """Wait until a lock is free; for less than the default lease, so it was released."""
    eventually(lambda: locks["default"].holder(name) is None, f"{name} free")


def messages(queue: str) -> int:
    with redis.Redis.from_url(server_url(10)) as broker:
        return broker.llen(queue)
