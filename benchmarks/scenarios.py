"""What is measured: functions that run in a worker, and those that compare what they return."""

from __future__ import annotations

import linecache
import math
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns, perf_counter, process_time, sleep
from typing import Any

from redis import Redis

from benchmarks.contenders import (
    BARE,
    BEFORE,
    OURS,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    TOKEN,
    Contender,
)
from benchmarks.workers import Worker, crew, together

Figures = dict[str, dict[str, float]]
"""By contender and by what was measured."""
PAUSE = 0.003
"""Seconds between two pairs, as between two requests."""
CROWD = 8
THREADS = 100


@dataclass
class Bench:
    """The server, how long to measure, and the other checkout if there is one."""

    url: str
    admin: Redis
    before: str
    quick: bool
    rounds: int = field(init=False)
    idle: float = field(init=False)
    """Seconds for which to measure what waiters cost."""

    def __post_init__(self) -> None:
        self.rounds = 2 if self.quick else 15
        self.idle = 1.0 if self.quick else 5.0

    def contenders(self, *slugs: str) -> list[str]:
        return [*([BEFORE] if self.before else []), *slugs]

    @contextmanager
    def crews(
        self, slugs: list[str], size: int = 1, *, hiredis: bool = False
    ) -> Iterator[dict[str, list[Worker]]]:
        """Start the workers of all contenders; they have taken a lock once."""
        with ExitStack() as stack:
            crews = {
                slug: stack.enter_context(
                    crew(
                        size,
                        slug,
                        self.url,
                        hiredis=hiredis,
                        before=self.before if slug == BEFORE else "",
                    )
                )
                for slug in slugs
            }
            for slug, workers in crews.items():
                for worker in workers if slug != TOKEN else ():
                    worker.call(pairs, "warm", 5, 0.0)
            yield crews

    def compare(
        self, slugs: list[str], measure: Callable[[str, int], dict[str, float]]
    ) -> dict[str, dict[str, list[float]]]:
        """Measure all contenders in each round, in random order; return the rounds' values."""
        found: dict[str, dict[str, list[float]]] = {slug: {} for slug in slugs}
        for turn in range(self.rounds):
            for slug in random.sample(slugs, len(slugs)):
                for what, value in measure(slug, turn).items():
                    found[slug].setdefault(what, []).append(value)
        return found


def medians(found: dict[str, dict[str, list[float]]], **bases: str) -> Figures:
    """Return medians; ``what="slug"`` adds the median of the ratios to a contender's, by rounds."""
    figures: Figures = {
        slug: {what: median(values) for what, values in by_what.items()}
        for slug, by_what in found.items()
    }
    for what, base in bases.items():
        for slug, by_what in found.items():
            if what in by_what and what in found[base]:
                pairs_of = zip(by_what[what], found[base][what], strict=True)
                figures[slug][f"{what} / {base}"] = median(one / other for one, other in pairs_of)
    return figures


# A free lock.


def pairs(contender: Contender, prefix: str, count: int, pause: float) -> tuple[float, float]:
    """Return the seconds and the processor's seconds for pairs of acquire and release."""
    lock = contender.lock
    began, used = perf_counter(), process_time()
    for number in range(count):
        handle = lock(f"{prefix}:{number}")
        handle.acquire()
        handle.release()
        if pause:
            sleep(pause)
    return perf_counter() - began, process_time() - used


def free(bench: Bench, *, hiredis: bool = False) -> Figures:
    """Take and release a lock that is free, in a loop and after pauses."""
    slugs = bench.contenders(OURS, REDIS_PY, PYTHON_REDIS_LOCK, BARE)
    count, paused = (200, 30) if bench.quick else (1000, 200)
    with bench.crews(slugs, hiredis=hiredis) as crews:

        def measure(slug: str, turn: int) -> dict[str, float]:
            (worker,), prefix = crews[slug], f"{slug}:{turn}"
            before = server_seconds(bench.admin)
            took, used = worker.call(pairs, prefix, count, 0.0)
            served = server_seconds(bench.admin) - before
            _, waking = worker.call(pairs, prefix, paused, PAUSE)
            return {
                "pairs/s": count / took,
                "client µs": 1e6 * used / count,
                "client µs paused": 1e6 * waking / paused,
                "server µs": 1e6 * served / count,
            }

        found = bench.compare(slugs, measure)
    each = dict.fromkeys(found[OURS], REDIS_PY)
    return medians(found, **each)


def free_with_hiredis(bench: Bench) -> Figures:
    """The same where redis-py has hiredis."""
    return free(bench, hiredis=True)


def server_seconds(admin: Redis) -> float:
    info = admin.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


# A lock that is passed on.


def hold(contender: Contender, name: str, take: bool) -> None:
    contender.held = [contender.lock(name) for _ in range(contender.places)]
    for handle in contender.held if take else ():
        handle.acquire()


def let_go(contender: Contender, seconds: float) -> int:
    """Release after some time; return when the release began."""
    sleep(seconds)
    began = monotonic_ns()
    contender.held[0].release()
    return began


def wait(contender: Contender, name: str) -> int:
    """Wait for the lock; return when it was acquired, by the clock that all processes share."""
    handle = contender.lock(name)
    handle.acquire()
    got = monotonic_ns()
    if not name.startswith("token"):
        handle.release()
    return got


def pass_on(workers: list[Worker], name: str, *, take: bool = True) -> float:
    """Release a lock for which another process waits; return the milliseconds until that has it."""
    holder, waiter = workers
    holder.call(hold, name, take)
    waiter.start(wait, name)
    sleep(0.03)  # by then it waits; polls are then met at any phase
    holder.start(let_go, random.uniform(0.005, 0.105))
    got = waiter.result()
    return float(got - holder.result()) / 1e6


def hand_off(bench: Bench, *compared: str) -> Figures:
    """Release a lock for which another process waits: milliseconds until that has it."""
    slugs = [*compared] or bench.contenders(OURS, REDIS_PY, PYTHON_REDIS_LOCK, TOKEN)
    each = 3 if bench.quick else 10
    with bench.crews(slugs, 2) as crews:

        def once(slug: str, name: str) -> float:
            if slug == TOKEN:
                return pass_on(crews[slug], f"token:{name}", take=False)
            return pass_on(crews[slug], name)

        def measure(slug: str, turn: int) -> dict[str, float]:
            waits = [once(slug, f"{slug}:{turn}:{number}") for number in range(each)]
            return {"ms": median(waits), "worst ms": max(waits)}

        for slug in slugs:  # untimed: scripts, connections and listeners
            once(slug, f"warm:{slug}")
        found = bench.compare(slugs, measure)
    return medians(found, ms=TOKEN)


def hammer(contender: Contender, name: str, start: float, end: float) -> int:
    """Return how often this process got the lock between two moments that all share."""
    got = 0
    sleep(max(0.0, start - monotonic()))
    while True:
        handle = contender.lock(name)
        handle.acquire()
        handle.release()
        if monotonic() >= end:
            return got
        got += 1


def crowd(bench: Bench) -> Figures:
    """Eight processes want one lock and do nothing with it: acquisitions a second, and shares."""
    slugs = bench.contenders(OURS, REDIS_PY, PYTHON_REDIS_LOCK, TOKEN)
    seconds = 0.5 if bench.quick else 1.5
    with bench.crews(slugs, CROWD) as crews:

        def measure(slug: str, turn: int) -> dict[str, float]:
            name = f"{slug}:{turn}"
            if slug == TOKEN:
                bench.admin.lpush(f"token:{name}", "token")
            start = monotonic() + 0.1
            got = together(crews[slug], hammer, name, start, start + seconds)
            return {"acquisitions/s": sum(got) / seconds, "least / most": min(got) / max(got)}

        for slug in slugs:
            measure(slug, -1)
        found = bench.compare(slugs, measure)
    return medians(found, **{"acquisitions/s": TOKEN})


# Many that wait.


def queue_up(contender: Contender, name: str) -> None:
    def body() -> None:
        handle = contender.lock(name)
        handle.acquire()
        contender.notes.append(1)
        handle.release()

    contender.threads = [threading.Thread(target=body, daemon=True) for _ in range(THREADS)]
    for thread in contender.threads:
        thread.start()
        # One after the other, so that one connection can carry their calls. The first one imports
        # what waiters need, and listens.
        sleep(0.1 if thread is contender.threads[0] else 0.005)


def served(contender: Contender) -> int:
    for thread in contender.threads:
        thread.join()
    return len(contender.notes)


def waiting(bench: Bench) -> Figures:
    """A hundred threads of a process wait: more connections, and requests a second."""
    slugs = bench.contenders(OURS, REDIS_PY, PYTHON_REDIS_LOCK)
    figures: Figures = {}
    with bench.crews(slugs, 2) as crews:
        for slug in slugs:
            holder, waiter = crews[slug]
            connections = len(bench.admin.client_list())
            holder.call(hold, f"{slug}:many", True)
            waiter.call(queue_up, f"{slug}:many")
            sleep(1.0)  # by then all wait
            before = calls_of(bench.admin)
            sleep(bench.idle)
            after = calls_of(bench.admin)
            more = len(bench.admin.client_list()) - connections
            holder.call(let_go, 0.0)
            assert waiter.call(served) == THREADS
            grown = {name: calls - before.get(name, 0) for name, calls in after.items()}
            grown = {name: calls for name, calls in grown.items() if calls and name != "info"}
            scripts = sum(calls for name, calls in grown.items() if name.startswith("eval"))
            requests = scripts or sum(grown.values())  # what a script calls is no request
            figures[slug] = {"more connections": more, "requests/s": requests / bench.idle}
    return figures


def scripts_run(admin: Redis) -> int:
    return sum(calls for name, calls in calls_of(admin).items() if name.startswith("eval"))


def calls_of(admin: Redis) -> dict[str, int]:
    stats = admin.info("commandstats").items()
    return {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats}


# Operators.

FILL = "for number = ARGV[1], ARGV[2] do redis.call('SET', 'page:' .. number, number) end"


def hold_many(contender: Contender, count: int) -> None:
    contender.lease = 600  # a scan of a million keys takes longer than the usual lease
    contender.held = [contender.lock(f"listed:{number}") for number in range(count)]
    for handle in contender.held:
        handle.acquire()


def holders(contender: Contender, count: int) -> float:
    began = perf_counter()
    found = list(contender.locks["default"].holders())  # type: ignore[attr-defined]
    took = perf_counter() - began
    assert len(found) == count, len(found)
    return took


def scan(contender: Contender, count: int) -> float:
    """Find only the names, as redis-py's ``scan_iter`` does by default."""
    began = perf_counter()
    found = set(contender.client.scan_iter(match="lock:*"))
    took = perf_counter() - began
    assert len(found) == count, len(found)
    return took


def listing(bench: Bench) -> Figures:
    """List a thousand held locks in a database of a million keys (in short: of a tenth)."""
    keys, step, held = 100_000 if bench.quick else 1_000_000, 10_000, 1000
    bench.admin.flushall()
    for first in range(1, keys, step):
        bench.admin.eval(FILL, 0, first, first + step - 1)
    slugs = bench.contenders(OURS)
    figures: Figures = {}
    for slug in slugs:
        with bench.crews([slug]) as crews:
            (worker,) = crews[slug]
            worker.call(hold_many, held)
            worker.call(holders, held)
            took = median(worker.call(holders, held) for _ in range(5))
            scanned = worker.call(scan, held)
            figures[slug] = {"ms": 1000 * took, "SCAN ms": 1000 * scanned}
            figures[slug]["times faster"] = scanned / took
        bench.admin.delete(*bench.admin.scan_iter(match="lock*", count=10_000))
    bench.admin.flushall()
    return figures


# What a reader opens.


def reading(contender: Contender) -> dict[str, float]:
    """Count what of the package a free ``lock("x")`` runs, and what the first one imports."""
    from django_redis_lock import lock

    first = lock("read")
    first.acquire()
    first.release()
    let_renewal_sleep()
    calls: set[tuple[str, int]] = set()
    lines: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if "django_redis_lock" not in file:
            return None
        calls.add((file, frame.f_code.co_firstlineno))
        lines.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        handle = lock("walk")
        handle.acquire()
        handle.release()
    finally:
        sys.settrace(None)
    files = [
        module.__file__
        for name, module in list(sys.modules.items())
        if name.startswith("django_redis_lock") and module.__file__
    ]
    return {
        "files": len({file for file, _ in calls}),
        "functions": len(calls),
        "lines": len(lines),
        "imported lines": sum(len(linecache.getlines(file)) for file in files),
    }


def let_renewal_sleep() -> None:
    """Wait until the threads that renew leases sleep, so that they need not be woken."""
    from django_redis_lock.backends.renewal import renewer

    servers = getattr(renewer, "servers", {})  # a package from before may have none
    while any(math.isinf(server.wakes_at) for server in [*servers.values()]):
        sleep(0.001)


def walk(bench: Bench) -> Figures:
    """What a reader opens for a free pair: files, functions, lines; and imported lines."""
    slugs = bench.contenders(OURS)
    with bench.crews(slugs) as crews:
        return {slug: crews[slug][0].call(reading) for slug in slugs}


# A flash sale.

STOCK, BUYERS = 40, 8


def buy(contender: Contender, shelf: str, name: str, guarded: bool) -> int:
    """Buy until nothing is left, reading and writing a file as a view does a row."""
    path, bought = Path(shelf), 0
    while True:
        handle = contender.lock(name)
        if guarded:
            handle.acquire()
        try:
            left = int(path.read_text() or 0)
            if left < 1:
                return bought
            sleep(0.001)  # a payment
            path.write_text(str(left - 1))
            bought += 1
        finally:
            if guarded:
                handle.release()


def sale(bench: Bench) -> Figures:
    """Eight processes buy 40 units, each after a payment of a millisecond."""
    slugs = bench.contenders(OURS, REDIS_PY, PYTHON_REDIS_LOCK)
    with tempfile.TemporaryDirectory() as directory, bench.crews(slugs, BUYERS) as crews:
        shelf = Path(directory) / "shelf"

        def measure(slug: str, turn: int, guarded: bool = True) -> dict[str, float]:
            shelf.write_text(str(STOCK))
            began = perf_counter()
            bought = sum(together(crews[slug], buy, str(shelf), f"{slug}:{turn}", guarded))
            return {"orders/s": bought / (perf_counter() - began), "oversold": bought - STOCK}

        found = bench.compare(slugs, measure)
        figures = medians(found, **{"orders/s": REDIS_PY})
        figures["no guard"] = measure(OURS, 0, guarded=False)
    return figures
