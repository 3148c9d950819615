"""How long a fault, or a limit that an operator raises, delays the next caller."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from celery import Celery
from redis import Redis

from benchmarks.contenders import OURS, Contender, configure
from benchmarks.crowds import count_waiting, hold_long
from benchmarks.scenarios import Bench, Figures, hold, let_go
from benchmarks.tasks import BROKER, LOCKS, PORT, RESULTS, running_worker
from benchmarks.workers import Worker, crew
from example_project.embedded import EmbeddedServer

NAME, NOTES = "delayed", 4
"""The lock, and the database of the server in which tasks leave their notes."""
PROMISED = {
    "killed child: its lock is free": 0.5,
    "killed waiter: hidden": 3.0,
    "stopped waiter: the next one is served": 1.5,
    "silent server, wait of 2 s: error after the wait": 0.3,
    "silent server, no wait: error": 1.3,
    "raised limit: permit granted": 0.1,
    "raised limit: parked task runs": 2.0,
}
"""Seconds, as docs/explanation/failure-modes.md has them; a grant is sent with the new limit."""
PATIENCE = 60


def delays(bench: Bench) -> Figures:
    """Seconds until the next caller goes on, the most of some rounds, and what is promised."""
    most: dict[str, float] = {}
    for _ in range(1 if bench.quick else 5):
        for measure in (_children, _killed_waiter, _stopped_waiter, _silent_server):
            for what, seconds in measure(bench).items():
                most[what] = max(seconds, most.get(what, 0.0))
            bench.admin.flushall()
    return {what: {"seconds": most[what], "promised": PROMISED[what]} for what in PROMISED}


def until(reached: Callable[[], Any]) -> float:
    """Return the seconds after which something was reached."""
    began = monotonic()
    while not reached():
        if monotonic() > began + PATIENCE:
            raise TimeoutError(f"not reached within {PATIENCE} s")
        sleep(0.005)
    return monotonic() - began


# Waiters.


def queue_up(contender: Contender, name: str) -> int:
    """Wait in a thread, and note when the lock was acquired; return the id of the process."""

    def body() -> None:
        contender.lock(name).acquire()
        contender.notes.append(monotonic())

    threading.Thread(target=body, daemon=True).start()
    return os.getpid()


def acquired(contender: Contender) -> float:
    return contender.notes[0] if contender.notes else 0.0


def _line_up(workers: list[Worker]) -> list[int]:
    """Have the first worker hold the lock and the others queue up; return their processes."""
    holder, *others = workers
    holder.call(hold_long, NAME)
    pids = []
    for count, worker in enumerate(others, start=1):
        pids.append(worker.call(queue_up, NAME))
        until(lambda count=count: holder.call(count_waiting, NAME) == count)  # type: ignore[misc]
    return pids


def _killed_waiter(bench: Bench) -> dict[str, float]:
    with crew(2, OURS, bench.url) as (holder, waiter):
        _line_up([holder, waiter])
        waiter.kill()
        return {"killed waiter: hidden": until(lambda: not holder.call(count_waiting, NAME))}


def _stopped_waiter(bench: Bench) -> dict[str, float]:
    with crew(3, OURS, bench.url) as workers:
        holder, _, last = workers
        stopped, _ = _line_up(workers)
        os.kill(stopped, signal.SIGSTOP)
        began = holder.call(let_go, 0.0) / 1e9
        until(lambda: last.call(acquired))
        os.kill(stopped, signal.SIGCONT)
        return {"stopped waiter: the next one is served": last.call(acquired) - began}


# The server.


def fail(contender: Contender, wait: float) -> float:
    """Return the seconds until a lock is known to be unavailable."""
    from django_redis_lock import lock
    from django_redis_lock.exceptions import LockUnavailable

    began = monotonic()
    try:
        lock(NAME, timeout=10, blocking_timeout=wait).acquire()
    except LockUnavailable:
        return monotonic() - began
    raise AssertionError("a stopped server answered")


def _silent_server(bench: Bench) -> dict[str, float]:
    with EmbeddedServer() as server, crew(1, OURS, server.url()) as (worker,):
        worker.call(hold, "warm", True)
        server.pause()
        waited, at_once = worker.call(fail, 2.0) - 2.0, worker.call(fail, 0.0)
        server.resume()
    return {
        "silent server, wait of 2 s: error after the wait": waited,
        "silent server, no wait: error": at_once,
    }


# Tasks, and limits.


def make_app() -> Celery:
    server = f"redis://127.0.0.1:{os.environ[PORT]}"
    configure(f"{server}/{LOCKS}")
    from django_redis_lock.celery import single_instance_task

    notes = Redis.from_url(f"{server}/{NOTES}")
    app = Celery("delays", broker=f"{server}/{BROKER}", backend=f"{server}/{RESULTS}")
    app.conf.broker_connection_retry_on_startup = True

    def rest() -> None:
        notes.set("pid", os.getpid())
        sleep(PATIENCE)

    def run() -> None:
        notes.set("ran", monotonic())

    app.task(name="rest", shared=False)(single_instance_task(key="rest")(rest))
    guard = single_instance_task(key="paused", concurrency=2, on_conflict="park")
    app.task(name="paused", shared=False)(guard(run))
    return app


def _children(bench: Bench) -> dict[str, float]:
    from django_redis_lock import locks, semaphore

    os.environ[PORT] = str(bench.admin.connection_pool.connection_kwargs["port"])
    with running_worker("benchmarks.delays:app"), make_app() as app:
        server = locks["default"]
        notes = Redis(port=int(os.environ[PORT]), db=NOTES)
        app.tasks["rest"].delay()
        until(lambda: notes.exists("pid"))
        os.kill(int(notes.get("pid") or 0), signal.SIGKILL)
        freed = until(lambda: server.holder("rest") is None)

        server.set_limit("paused", 0)
        task = app.tasks["paused"].delay()
        until(lambda: task.state == "PARKED")
        began = monotonic()
        server.set_limit("paused", None)
        until(lambda: notes.exists("ran"))
        parked = float(notes.get("ran") or 0) - began

        server.set_limit("paused", 0)
        permit, got = semaphore("paused", 2, timeout=10, blocking_timeout=PATIENCE), []
        waiter = threading.Thread(target=lambda: got.append(permit.acquire() and monotonic()))
        waiter.start()
        until(lambda: any(server.waiting("paused")))
        began = monotonic()
        server.set_limit("paused", None)
        waiter.join()
    return {
        "killed child: its lock is free": freed,
        "raised limit: parked task runs": parked,
        "raised limit: permit granted": got[0] - began,
    }


def __getattr__(name: str) -> Any:
    """Make the app when the worker asks for it; the benchmark imports this module without it."""
    if name != "app":
        raise AttributeError(name)
    return make_app()
