"""A number that processes write under a lock, while one after another that holds it is stopped."""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
import tempfile
import threading
from collections import Counter, namedtuple
from itertools import product
from pathlib import Path
from time import monotonic, monotonic_ns, sleep

from benchmarks.contenders import CONTENDERS, FIFO, OURS, WITH_LEASES, Contender, configure
from benchmarks.scenarios import Bench, Figures
from benchmarks.semaphores import Visit, overtaken
from benchmarks.workers import WorkerError, crew, together

LEASE = 1
"""Seconds: python-redis-lock takes no fraction."""
CROWD, OTHERS, WARM = 6, 0.25, 1.0
"""Processes; how often any is stopped, and not the holder; seconds in which they connect."""
ASKED, FENCED = "asked before the write", "with fences"
GUARDED = f"{CONTENDERS[OURS].title}, {FENCED}"
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE benchmarks_number (id INTEGER PRIMARY KEY, fence BIGINT, value INT, version BIGINT);
INSERT INTO benchmarks_number VALUES (1, 0, 0, 0);
"""
COUNTED = ("updates", "stops", "lost", "late", "refused", "stuck")
Counts = Counter[str]
Request = namedtuple("Request", "asked got seen version written error")
"""An update: when, the version of the number that it read, its own, if it was taken, its error."""


def lost(requests: list[Request], last: int) -> int:
    """Return how many updates that raised no error the last version is not built on."""
    written = {one.version: one for one in requests if one.written}
    missing = {version for version, one in written.items() if not one.error}
    while last in written:
        missing.discard(last)
        last = written[last].seen
    return len(missing)


def late(requests: list[Request]) -> int:
    """Return how many writes the store took that replaced another version than was read."""
    seen = [one.seen for one in requests if one.written]
    return len(seen) - len({*seen})


def undisturbed(requests: list[Request], stops: list[Visit]) -> list[Visit]:
    """Return when those asked and were served whose process was not stopped in between."""
    visits = [(one.asked, one.got) for one in requests if one.got]
    return [(a, b) for a, b in visits if not any(a < end and start < b for start, end in stops)]


def set_up(contender: Contender, url: str, folder: Path) -> int:
    """Make ready for updates; return the id of the process."""
    from django.conf import settings
    from django.test import override_settings

    configure(url)
    entry = {**settings.LOCKS["default"], "TIMEOUT": LEASE}
    override_settings(LOCKS={"default": entry}).enable()
    from django.db import connections, models

    from django_redis_lock.fencing import Fenced

    options = {"timeout": 30, "init_command": "PRAGMA synchronous = OFF"}
    store = {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "store", "OPTIONS": options}
    connections.settings = connections.configure_settings({"default": store})
    del connections["default"]  # the one without a database

    class Number(Fenced):
        value, version = models.IntegerField(), models.BigIntegerField()

        class Meta:
            app_label = "benchmarks"

    contender.lease, contender.renewed = LEASE, True
    contender.notes = [Number.objects.all(), folder / "inside"]
    logging.disable()
    threading.excepthook = lambda args: None  # renewals that are refused
    return os.getpid()


def updates(contender: Contender, way: str, first: int, until: float) -> list[Request]:
    random.seed(first)
    done: list[Request] = []
    while monotonic() < until:
        done.append(update(contender, way, first + len(done)))
    return done


def update(contender: Contender, way: str, version: int) -> Request:
    """Add one to the number."""
    rows, inside = contender.notes
    asked, got, seen, written, failed = monotonic_ns(), 0, 0, False, ""
    try:
        with contender.lock("number") as held:
            got = monotonic_ns()
            inside.write_text(str(os.getpid()))
            rows = rows.fenced(held.fence) if way == FENCED else rows
            row = rows.get()
            seen = row.version
            sleep(random.uniform(0.001, 0.005))
            if way != ASKED or contender.held_by(held):
                written = bool(rows.update(value=row.value + 1, version=version))
            inside.write_text("")
    except Exception as error:
        failed = type(error).__name__
    return Request(asked, got, seen, version, written, failed)


def stop(pids: list[int], inside: Path, seed: int, until: float) -> dict[int, list[Visit]]:
    """Stop one process after another, most often the holder; return when they did not run well."""
    dice, warm = random.Random(seed), monotonic_ns() + int(1e9 * WARM)
    stops = {pid: [(0, warm)] for pid in pids}
    sleep(WARM)
    while True:
        pause, seconds = dice.uniform(0.3, 0.8), LEASE * dice.uniform(1.5, 2.5)
        pid = dice.choice(pids) if dice.random() < OTHERS else 0
        sleep(pause)
        while pid not in stops and monotonic() < until:
            sleep(random.uniform(0, 0.005))  # at any moment of a hold
            pid = int(inside.read_text() or 0)
        if monotonic() + seconds > until:
            return stops
        began = monotonic_ns()
        os.kill(pid, signal.SIGSTOP)
        try:
            sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        stops[pid].append((began, monotonic_ns()))


def play(slug: str, way: str, url: str, seed: int, seconds: float) -> tuple[Counts, list[Visit]]:
    """Have processes update one number, and stop some; return counts, and who waited when."""
    with tempfile.TemporaryDirectory() as directory, crew(CROWD, slug, url) as workers:
        inside, store = Path(directory, "inside"), sqlite3.connect(Path(directory, "store"))
        inside.touch()
        store.executescript(SCHEMA)
        pids = together(workers, set_up, url, inside.parent)
        until = monotonic() + seconds
        for number, worker in enumerate(workers):
            worker.start(updates, way, 1 + 1_000_000 * number, until)
        stops = stop(pids, inside, seed, until)
        each = [worker.result() for worker in workers]
        ((last,),) = store.execute("SELECT version FROM benchmarks_number")
        store.close()
    requests = [one for some in each for one in some]
    visits = [undisturbed(some, stops[pid]) for pid, some in zip(pids, each, strict=True)]
    counts = Counter(one.error or "updates" for one in requests)
    counts["stops"] = sum(len(some) - 1 for some in stops.values())
    counts["lost"], counts["late"] = lost(requests, last), late(requests)
    counts["refused"] = sum(bool(one.got) and not one.written for one in requests)
    return counts, [one for some in visits for one in some]


def stopped(bench: Bench) -> Figures:
    """Six processes take a lock, read a number in SQLite, rest for 1 to 5 ms, write it back one
    greater, and release. One after another, most often the holder, is stopped for 1.5 to 2.5 leases
    of 1 s. Updates are lost that raised no error, if the last number is not built on them. Late
    writes replaced another number than was read. Overtaken are pairs that asked 5 ms apart."""
    rounds, seconds = (1, 6.0) if bench.quick else (3, 12.0)
    plays = [*product(WITH_LEASES, ("", ASKED)), (OURS, FENCED), (FIFO, FENCED)]
    found = {each: Counts() for each in plays}
    visits: dict[str, list[Visit]] = {slug: [] for slug in WITH_LEASES}
    for turn, each in product(range(rounds), plays):
        bench.admin.flushall()
        try:
            counts, seen = play(*each, bench.url, turn, seconds)
        except WorkerError as error:  # as one that gives no answer for two minutes
            counts, seen = Counter({"stuck": 1, str(error): 1}), []
        print(turn, *each, dict(counts), flush=True)
        found[each].update(counts)
        visits[each[0]] += seen
    figures: Figures = {"all": {"lost": sum(each["lost"] for each in found.values())}}
    for (slug, way), counts in found.items():
        row = {what: counts[what] for what in COUNTED}
        share = {} if way else {"overtaken %": 100 * overtaken(visits[slug], served_apart=1)}
        figures[f"{CONTENDERS[slug].title}, {way}" if way else slug] = {**row, **share}
    return figures
