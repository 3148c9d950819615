"""A load run by a plan: the guards in turn, in rounds, on servers of their own."""

import asyncio
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.frame.environment import environment
from benchmarks.frame.run import Run, say
from benchmarks.frame.table import Row
from benchmarks.load import measure
from benchmarks.load.plan import CELLS, MOST_BUYERS, PAYING, RUSH, Plan
from benchmarks.load.quiet import Watch
from benchmarks.load.rounds import compared, together
from benchmarks.load.shop.names import POSTGRESQL
from benchmarks.load.stage import Stage, staged
from example_project.postgres import postgres_binaries


class Load:
    """A run by a plan; `results` holds what it has measured so far."""

    def __init__(self, plan: Plan, watch: Watch) -> None:
        self.plan = plan
        self.watch = watch
        self.run = Run({title: seconds for title, seconds, *_ in plan.parts()})
        self.results: dict[str, Any] = {"sales": {}, "rush": {}, "waiting": {}, "bystanders": {}}

    def measure(self) -> None:
        """Measure every part."""
        with self.run.interruptible(signal.SIGINT, signal.SIGTERM):
            for title, _, method, arguments in self.plan.parts():
                self.run.part(title, partial(getattr(self, method), *arguments))
        self.results["rounds"] = self.plan.rounds
        self.results["missing"] = self.run.missing
        self.results["machine"] = self.watch.found()
        self.results["seconds"] = round(self.run.seconds)

    def sell(self, database: str) -> None:
        cells, sales = self.plan.cells(database), self.plan.sales[database]
        with self._staged(database, threads=MOST_BUYERS) as stage:
            for slug in cells[RUSH]:  # untimed: it creates threads and connections
                measure.sale(stage, slug, PAYING, 0.1)

            def once(item: str, _turn: int) -> Row:
                cell, slug = item.split()
                if cell == RUSH:
                    return measure.rush(stage, slug, MOST_BUYERS)
                return measure.sale(stage, slug, CELLS[cell], sales[cell].seconds)

            items = [f"{cell} {slug}" for cell, slugs in cells.items() for slug in slugs]
            found = self._rounds(items, once)
        by_cell = {
            cell: {slug: found[f"{cell} {slug}"] for slug in slugs} for cell, slugs in cells.items()
        }
        self.results["rush"][database] = {
            slug: together(rows) for slug, rows in by_cell.pop(RUSH).items()
        }
        self.results["sales"][database] = {cell: compared(rows) for cell, rows in by_cell.items()}

    def wait(self) -> None:
        pool = self.plan.redis_pool

        def once(item: str, _turn: int) -> Row:
            buyers, slug = item.split()
            threads = int(buyers) + 1
            # New servers for each: a pool keeps the connections that it has once made.
            with self._staged(POSTGRESQL, 2, threads=threads, redis_pool=pool) as stage:
                return asyncio.run(measure.waiting(stage, slug, int(buyers)))

        waiting = self.plan.waiting
        items = [f"{buyers} {slug}" for buyers, slugs in waiting.items() for slug in slugs]
        for item, rows in self._rounds(items, once).items():
            buyers, slug = item.split()
            self.results["waiting"].setdefault(buyers, {})[slug] = together(rows)

    def look_on(self) -> None:
        plan = self.plan
        threads, pool = MOST_BUYERS + plan.lookers, plan.database_pool
        with self._staged(POSTGRESQL, threads=threads, database_pool=pool) as stage:

            def once(slug: str, _turn: int) -> Row:
                row = measure.bystanders(stage, slug, PAYING, plan.lookers, plan.looking)
                return asyncio.run(row)

            found = self._rounds(plan.bystanders, once)
        self.results["bystanders"] = {slug: together(rows) for slug, rows in found.items()}

    def _rounds(
        self, items: Sequence[str], once: Callable[[str, int], Row]
    ) -> dict[str, list[Row]]:
        """Measure every item in each round, and say which round begins."""
        begun: set[int] = set()

        def announced(item: str, turn: int) -> Row:
            if turn not in begun:
                begun.add(turn)
                say(f"  round {turn + 1} of {self.plan.rounds}")
            return once(item, turn)

        return self.run.rounds(self.plan.rounds, items, announced)

    @contextmanager
    def _staged(self, database: str, processes: int = 0, **sizes: int) -> Iterator[Stage]:
        with staged(database, processes=processes or self.plan.processes, **sizes) as stage:
            if "environment" not in self.results:
                self.results["environment"] = _described(stage)
            with self.watch.during():
                yield stage


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
