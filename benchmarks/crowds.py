"""Thousands that wait for one name: how they are served, and how long scripts block the server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, monotonic_ns, process_time, sleep
from typing import Any

from benchmarks.contenders import OURS, PYTHON_REDIS_LOCK, Contender
from benchmarks.scenarios import Bench, Figures, hold, let_go, scripts_run, server_seconds
from benchmarks.semaphores import Visit
from benchmarks.workers import Worker, together

PROCESSES = 10
LIMIT = 20
"""Seconds for two thousand of a crowd, and at least; one that takes longer has not finished."""
APART = 0.01
"""Seconds between two that come in one process, so that the order in which they come is known."""
SLOW = 100
"""Microseconds from which on the server notes how long a command took."""


def hold_long(contender: Contender, name: str) -> None:
    hold(contender, name, True)
    contender.held[0].extend(600)


def line_up(contender: Contender, name: str, count: int) -> None:
    """Start threads that wait for a lock and release it at once."""

    def body() -> None:
        asked, handle = monotonic_ns(), contender.lock(name)
        handle.acquire()
        contender.notes.append((asked, monotonic_ns()))
        handle.release()

    threading.stack_size(256 * 1024)
    for _ in range(count):
        threading.Thread(target=body, daemon=True).start()
        sleep(APART)


def visits(contender: Contender) -> list[Visit]:
    return [*contender.notes]


def count_served(contender: Contender) -> int:
    return len(contender.notes)


def cpu_used(contender: Contender) -> float:
    return process_time()


def count_waiting(contender: Contender, name: str) -> int:
    holder = contender.locks["default"].holder(name)  # type: ignore[attr-defined]
    return holder.waiters if holder else 0


def until(seconds: float, reached: Callable[[], bool]) -> bool:
    """Return whether something was reached within some seconds."""
    end = monotonic() + seconds
    while not (done := reached()) and monotonic() < end:
        sleep(0.1)
    return done


def drain(bench: Bench) -> Figures:
    """Crowds of threads in ten processes; "cut": their subscriptions are; no seconds: not done."""
    figures: Figures = {}
    count = 200 if bench.quick else 1000
    cases = [(slug, count, cut) for slug in bench.contenders(OURS) for cut in (False, True)]
    cases += [(PYTHON_REDIS_LOCK, count, False)]
    cases += [] if bench.quick else [(OURS, 10_000, False), (OURS, 10_000, True)]
    for slug, count, cut in cases:
        title = f"{slug}, {count:,}{', cut' if cut else ''}"
        with bench.crews([slug], PROCESSES + 1) as crews:
            figures[title] = _drain(bench, crews[slug], count, cut, slug != PYTHON_REDIS_LOCK)
        bench.admin.flushall()
    return figures


def _drain(
    bench: Bench, workers: list[Worker], count: int, cut: bool, watched: bool
) -> dict[str, float]:
    (holder, *crowd), name, limit = workers, "crowd", LIMIT * max(1, count / 2000)
    holder.call(hold_long, name)
    together(crowd, line_up, name, count // PROCESSES)
    if watched:
        until(limit, lambda: holder.call(count_waiting, name) >= count)
    sleep(bench.idle)  # by then they are idle
    figures = _idle(bench, crowd)
    began = holder.call(let_go, 0.0)
    if cut:
        bench.admin.client_kill_filter(_type="pubsub")
    done = until(limit, lambda: sum(together(crowd, count_served)) >= count)
    served = sorted(visit for some in together(crowd, visits) for visit in some)
    figures["served"] = len(served)
    if done:
        figures["seconds"] = (max(got for _, got in served) - began) / 1e9
        figures["served/s"] = count / figures["seconds"]
    apart = zip(served, served[count // 10 :], strict=False)  # a tenth of the crowd between them
    swapped = [later[1] < first[1] for first, later in apart]
    figures["swapped %"] = 100 * sum(swapped) / max(1, len(swapped))
    return figures


def _idle(bench: Bench, crowd: list[Worker]) -> dict[str, float]:
    """Return what a crowd costs while it waits."""
    seconds = bench.idle
    server, scripts, used = server_seconds(bench.admin), scripts_run(bench.admin), _cpu(crowd)
    sleep(seconds)
    return {
        "server CPU %": 100 * (server_seconds(bench.admin) - server) / seconds,
        "scripts/s a process": (scripts_run(bench.admin) - scripts) / seconds / PROCESSES,
        "client CPU % a process": 100 * (_cpu(crowd) - used) / seconds / PROCESSES,
    }


def _cpu(crowd: list[Worker]) -> float:
    return sum(together(crowd, cpu_used))


def gather(contender: Contender, names: list[str], limit: int | None, release: bool) -> None:
    """Acquire locks, or permits, in asyncio tasks, and release them at once or never."""
    from django_redis_lock import lock, semaphore

    async def one(name: str) -> None:
        handle = semaphore(name, limit, timeout=600) if limit else lock(name, timeout=600)
        contender.held.append(handle)
        await handle.aacquire()
        contender.notes.append(name)
        if release:
            await handle.arelease()

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, names), return_exceptions=True)

    contender.notes.clear()
    threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True).start()


def read_all(contender: Contender, name: str) -> None:
    backend = contender.locks["default"]  # type: ignore[attr-defined]
    list(backend.holders())
    backend.waiting(name)
    backend.read_index(queues=True)


def raise_limit(contender: Contender, name: str, limit: int) -> None:
    contender.locks["default"].set_limit(name, limit)  # type: ignore[attr-defined]


def longest(bench: Bench) -> Figures:
    """The longest that a script blocks the server, ms; with 0 as "done" a step met its limit."""
    figures: Figures = {}
    part = 50 if bench.quick else 1
    _give_cpu(int(bench.admin.info("server")["process_id"]))
    bench.admin.config_set("slowlog-max-len", 100_000)
    bench.admin.config_set("slowlog-log-slower-than", SLOW)
    for slug in bench.contenders(OURS):
        for begin, count in CROWDS.items():
            with bench.crews([slug], PROCESSES + 1) as crews:
                for what, step in begin(crews[slug], count // part).items():
                    bench.admin.slowlog_reset()
                    done = step() is not False
                    title = f"{slug}: {what.format(f'{count // part:,}')}"
                    figures[title] = {"ms": _slowest(bench), "done": float(done)}
            bench.admin.flushall()
    bench.admin.config_set("slowlog-log-slower-than", 10_000)
    return figures


def _give_cpu(server: int) -> None:
    """Give the server a CPU of its own, as a script that waits for one counts as slow."""
    first, *others = os.sched_getaffinity(0)
    if others:
        os.sched_setaffinity(server, {first})
        os.sched_setaffinity(0, others)


def _slowest(bench: Bench) -> float:
    noted = bench.admin.slowlog_get(100_000)
    took = [each["duration"] for each in noted if each["command"].upper().startswith(b"EVAL")]
    return max(took, default=SLOW) / 1000


Steps = dict[str, Callable[[], Any]]


def _join(workers: list[Worker], count: int, limit: int | None = None) -> bool:
    together(workers[1:], gather, ["crowd"] * (count // PROCESSES), limit, True)
    return until(6 * LIMIT, lambda: workers[0].call(count_waiting, "crowd") >= count)


def _served(workers: list[Worker], count: int) -> bool:
    return until(6 * LIMIT, lambda: sum(together(workers[1:], count_served)) >= count)


def _waiters(workers: list[Worker], count: int) -> Steps:
    holder = workers[0]
    holder.call(hold_long, "crowd")
    return {
        "{} waiters come": lambda: _join(workers, count),
        "read {} waiters": lambda: holder.call(read_all, "crowd"),
        "serve {} waiters": lambda: holder.call(let_go, 0.0) and _served(workers, count),
    }


def _dead_waiters(workers: list[Worker], count: int) -> Steps:
    holder = workers[0]
    holder.call(hold_long, "crowd")
    _join(workers, count)
    for worker in workers[1:]:
        worker.kill()
    return {
        "release past {} dead waiters": lambda: holder.call(let_go, 0.0),
        "and the next caller": lambda: holder.call(hold, "crowd", True),
    }


def _raised_limit(workers: list[Worker], count: int) -> Steps:
    workers[0].call(gather, ["crowd"], 1, False)
    until(LIMIT, lambda: bool(workers[0].call(count_served)))
    _join(workers, count, 1)

    def step() -> bool:
        workers[0].call(raise_limit, "crowd", count + 1)
        return _served(workers, count)

    return {"raise a limit for {} waiters": step}


def _held(workers: list[Worker], count: int, what: str, limit: int | None) -> Steps:
    def step() -> bool:
        for number, worker in enumerate(workers[1:]):
            each = range(count // PROCESSES)
            names = ["crowd" if limit else f"{number}:{one}" for one in each]
            worker.call(gather, names, limit, False)
        return _served(workers, count)

    read = partial(workers[0].call, read_all, "crowd")
    return {f"take {{}} {what}": step, f"read {{}} {what}": read}


CROWDS: dict[Callable[[list[Worker], int], Steps], int] = {
    _waiters: 20_000,
    _dead_waiters: 5000,
    _raised_limit: 5000,
    lambda workers, count: _held(workers, count, "permits", count): 20_000,
    lambda workers, count: _held(workers, count, "locks", None): 100_000,
}
