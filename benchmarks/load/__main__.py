"""Put the shop under load: `python -m benchmarks.load [--quick] [--docs] [--output DIR]`."""

import asyncio
import math
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.frame.environment import environment
from benchmarks.frame.figures import Spread, ratios
from benchmarks.frame.run import INTERRUPTED, Run, parser, say, write
from benchmarks.frame.table import Row, put_into
from benchmarks.frame.targets import judged
from benchmarks.load import measure
from benchmarks.load.plan import CELLS, LONG, MOST_BUYERS, PAYING, QUICK, REDIS_PY, Plan
from benchmarks.load.report import TARGETS, broken, draw, markdown
from benchmarks.load.shop.names import POSTGRESQL
from benchmarks.load.stage import Stage, staged
from example_project.postgres import postgres_binaries
from example_project.service import ROOT

PAGE = ROOT / "docs" / "explanation" / "flash-sale.md"
PICTURE = ROOT / "docs" / "images" / "flash-sale.svg"
PICTURE_SHOWS = "Bars: orders a second, waits, and pages of bystanders, for each guard"
QUIET = 0.25
"""A higher load average for each CPU says that the machine is not idle."""


def main() -> int:
    """Measure, print, write; return 1 if something was oversold or a target was missed."""
    options = _options()
    plan = QUICK if options.quick else LONG
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    load = Load(plan)
    load.measure()
    results: dict[str, Any] = {"quick": options.quick, **load.results}
    if "environment" not in results:
        say("interrupted before anything was measured")
        return INTERRUPTED
    results["targets"] = list(judged(results, TARGETS))
    page = markdown(results, load.run.note())
    print(page)
    write(options.output, "load", results, page)
    draw(results, options.output / "load.svg")
    if load.run.missing:
        return INTERRUPTED
    if options.docs:
        put_into(PAGE, "load", f"![{PICTURE_SHOWS}](../images/{PICTURE.name})\n\n{page}")
        draw(results, PICTURE)
    wrong = list(broken(results))
    missed = [
        f"not met: {target['what']}: {target['value']}, target {target['target']}"
        for target in results["targets"]
        if not target["met"] and not options.quick
    ]
    for line in (*wrong, *missed):
        say(line)
    say("oversold, failed or missed" if wrong or missed else "all as promised")
    return int(bool(wrong or missed))


class Load:
    """A run by a plan; `results` holds what it has measured so far."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run = Run({title: seconds for title, seconds, *_ in plan.parts()})
        self.results: dict[str, Any] = {"sales": {}, "rush": {}, "waiting": {}, "bystanders": {}}

    def measure(self) -> None:
        """Measure every part, each with servers of its own."""
        with self.run.interruptible(signal.SIGINT, signal.SIGTERM):
            for title, _, method, arguments in self.plan.parts():
                self.run.part(title, partial(getattr(self, method), *arguments))
        self.results["missing"] = self.run.missing
        self.results["seconds"] = round(self.run.seconds)

    def sell(self, database: str) -> None:
        plan = self.plan
        guards, cells = plan.guards(database), plan.cells[database]
        with self._staged(database, threads=MOST_BUYERS) as stage:
            for slug in guards:  # untimed: it creates threads and connections
                measure.sale(stage, slug, PAYING, 0.2)

            def once(sale: str, _turn: int) -> Row:
                cell, slug = sale.split()
                return measure.sale(stage, slug, CELLS[cell], cells[cell])

            sales = [f"{cell} {slug}" for cell in cells for slug in guards]
            found = self.run.rounds(plan.rounds, sales, once, plan.limits[database])
        self.results["sales"][database] = {
            cell: compared({slug: found[f"{cell} {slug}"] for slug in guards}) for cell in cells
        }

    def rush(self, database: str) -> None:
        rows = self.results["rush"][database] = {}
        with self._staged(database, threads=MOST_BUYERS) as stage:
            for slug in self.plan.guards(database):
                rows[slug] = measure.rush(stage, slug, MOST_BUYERS)

    def wait(self, database: str, buyers: int, slug: str) -> None:
        pool = self.plan.redis_pool
        with self._staged(database, 2, threads=buyers + 1, redis_pool=pool) as stage:
            row = asyncio.run(measure.waiting(stage, slug, buyers))
        crowds = self.results["waiting"].setdefault(database, {})
        crowds.setdefault(str(buyers), {})[slug] = row

    def look_on(self, slug: str) -> None:
        plan = self.plan
        threads, pool = MOST_BUYERS + plan.lookers, plan.database_pool
        with self._staged(POSTGRESQL, threads=threads, database_pool=pool) as stage:
            row = measure.bystanders(stage, slug, PAYING, plan.lookers, plan.looking)
            self.results["bystanders"][slug] = asyncio.run(row)

    @contextmanager
    def _staged(self, database: str, processes: int = 0, **sizes: int) -> Iterator[Stage]:
        with staged(database, processes=processes or self.plan.processes, **sizes) as stage:
            if "environment" not in self.results:
                self.results["environment"] = _described(stage)
            yield stage


def compared(rounds: dict[str, list[Row]]) -> dict[str, Row]:
    """Return the figures of each guard over all rounds, and their ratios to redis-py's in each."""
    found = {}
    for slug, rows in rounds.items():
        least, most = min(row["least_served"] for row in rows), max(r["most_served"] for r in rows)
        found[slug] = {
            **{key: median(row[key] for row in rows) for key in rows[0]},
            "longest": max(row["longest"] for row in rows),
            "least_served": least,
            "most_served": most,
            "served": f"{least} to {most}",
            "oversold": sum(row["oversold"] for row in rows),
            "errors": sum(row["errors"] for row in rows),
            "speed": _ratios(rounds, slug, "orders_per_second"),
            "p99_ratio": _ratios(rounds, slug, "p99"),
            "rounds": rows,
        }
    return found


def _ratios(rounds: dict[str, list[Row]], slug: str, key: str) -> Spread | None:
    values, base = ([row[key] for row in rounds[of]] for of in (slug, REDIS_PY))
    if not all(math.isfinite(value) for value in values) or not all(value > 0 for value in base):
        return None  # one of the two has served nobody
    return ratios(values, base)


def _described(stage: Stage) -> Row:
    command = [postgres_binaries() / "postgres", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return environment(
        stage.admin,
        "gunicorn",
        "psycopg",
        postgresql=f"PostgreSQL {printed.split()[2]}",
        sqlite=f"SQLite {sqlite3.sqlite_version}",
    )


def _options() -> Any:
    made = parser(
        "benchmarks.load",
        "Put a shop under load, with one guard against overselling after the other. The long form "
        "takes at most 15 minutes.",
        "about a minute, rough figures: is anything oversold?",
        "load",
        " and load.svg",
    )
    made.add_argument("--rounds", type=int, help="how often each sale is measured, at most")
    made.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    options = made.parse_args()
    if options.docs:
        if options.quick or options.rounds:
            made.error("--docs needs the long form; leave out --quick and --rounds")
        load = os.getloadavg()[0]
        if load > QUIET * len(os.sched_getaffinity(0)):
            made.error(f"--docs needs an idle machine; its load is {load:.2f}")
    return options


if __name__ == "__main__":
    sys.exit(main())
