"""Put the shop under load: `python -m benchmarks.load [--quick] [--docs] [--output DIR]`."""

import argparse
import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import environment
from benchmarks.stats import ratios
from example_project.postgres import postgres_binaries

from .measure import Row, bystanders, in_any_order, rush, sale, waiting
from .page import markdown, put_into
from .plan import CELLS, LONG, ON_POSTGRESQL, ON_SQLITE, PAYING, QUICK, REDIS_PY, Plan
from .shop.names import POSTGRESQL
from .stage import ROOT, Stage, staged
from .verdict import broken, judged

PAGE = ROOT / "docs" / "explanation" / "flash-sale.md"
PICTURE = ROOT / "docs" / "images" / "flash-sale.svg"
PICTURE_SHOWS = "Bars: orders a second, waits, and pages of bystanders, for each guard"
QUIET = 0.25
"""Load for each processor above which a run says more about the machine than about the guards."""
MOST_BUYERS = max(cell.buyers for cell in CELLS.values())
PACKAGES = ("gunicorn", "psycopg")


def main() -> int:
    """Measure, print, write; return 1 if something was oversold or a target was missed."""
    options = _options()
    plan = QUICK if options.quick else LONG
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    began = time.monotonic()
    results: dict[str, Any] = {"quick": options.quick, "sales": {}, "rush": {}}
    for database, cells in plan.cells.items():
        sales, rushes, described = sell_on(database, cells, plan)
        results["sales"][database] = sales
        results["rush"][database] = rushes
        results["environment"] = described
    results["waiting"] = wait_on(plan)
    results["bystanders"] = look_on(plan)
    results["targets"] = list(judged(results))
    results["seconds"] = round(time.monotonic() - began)
    page = markdown(results)
    print(page)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "load.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "load.md").write_text(page)

    from .picture import draw

    draw(results, options.output / "load.svg")
    if options.docs:
        put_into(PAGE, f"![{PICTURE_SHOWS}](../images/{PICTURE.name})\n\n{page}")
        draw(results, PICTURE)
    print(f"written to {options.output} after {results['seconds']} s", file=sys.stderr)
    wrong = list(broken(results))
    missed = [
        f"not met: {target['what']}: {target['value']:.2f}, asked for {target['target']}"
        for target in results["targets"]
        if not target["met"] and not options.quick
    ]
    print(*wrong, *missed, sep="\n", file=sys.stderr)
    print("oversold, failed or missed" if wrong or missed else "all as promised", file=sys.stderr)
    return int(bool(wrong or missed))


def sell_on(database: str, cells: tuple[str, ...], plan: Plan) -> tuple[Row, Row, Row]:
    """Return the figures of the sales and of the rushes on a database, and the environment."""
    known = ON_POSTGRESQL if database == POSTGRESQL else ON_SQLITE
    guards = [slug for slug in known if slug not in plan.left_out]
    rounds: dict[str, dict[str, list[Row]]] = {
        cell: {slug: [] for slug in guards} for cell in cells
    }
    with staged(database, processes=plan.processes, threads=MOST_BUYERS) as stage:
        described = _described(stage)
        for slug in guards:  # threads and connections are made, and no figure is kept
            sale(stage, slug, PAYING, 0.2)
        for number in range(plan.rounds):
            for cell in cells:
                for slug in in_any_order(guards):
                    _say(f"{database}, round {number + 1}, {CELLS[cell].title}: {slug}")
                    rounds[cell][slug].append(sale(stage, slug, CELLS[cell], plan.seconds))
        rushes = {slug: rush(stage, slug, MOST_BUYERS) for slug in guards}
    return {cell: compared(rounds[cell]) for cell in cells}, rushes, described


def compared(rounds: dict[str, list[Row]]) -> dict[str, Row]:
    """Return the figures of each guard over all rounds, and their ratios to redis-py's in each."""
    found = {}
    for slug, rows in rounds.items():
        found[slug] = {
            **{key: median(row[key] for row in rows) for key in rows[0]},
            "longest": max(row["longest"] for row in rows),
            "least_served": min(row["least_served"] for row in rows),
            "most_served": max(row["most_served"] for row in rows),
            "oversold": sum(row["oversold"] for row in rows),
            "errors": sum(row["errors"] for row in rows),
            "speed": _ratios(rounds, slug, "orders_per_second"),
            "p99_ratio": _ratios(rounds, slug, "p99"),
            "rounds": rows,
        }
    return found


def _ratios(rounds: dict[str, list[Row]], slug: str, key: str) -> Any:
    values, base = ([row[key] for row in rounds[of]] for of in (slug, REDIS_PY))
    if not all(math.isfinite(value) for value in values) or not all(value > 0 for value in base):
        return None  # one of the two has served nobody
    return ratios(values, base)


def wait_on(plan: Plan) -> Row:
    """Return what is open while buyers wait, each guard with servers of its own."""
    found: Row = {}
    for database, buyers, guards in plan.waiting:
        for slug in guards:
            _say(f"{database}, {buyers} buyers wait: {slug}")
            with staged(
                database, processes=2, threads=buyers + 1, redis_pool=plan.redis_pool
            ) as stage:
                row = waiting(stage, slug, buyers, watch=2)
            row["listening_per_process"] = row["redis_listening"] / row["processes"]
            found.setdefault(database, {}).setdefault(str(buyers), {})[slug] = row
    return found


def look_on(plan: Plan) -> Row:
    """Return how a page of another product fares, with a pool of database connections."""
    found = {}
    for slug in plan.bystanders:
        _say(f"bystanders: {slug}")
        with staged(
            POSTGRESQL,
            processes=plan.processes,
            threads=MOST_BUYERS + plan.lookers,
            database_pool=plan.database_pool,
        ) as stage:
            found[slug] = bystanders(stage, slug, PAYING, plan.lookers, plan.seconds)
    return found


def _described(stage: Stage) -> Row:
    described = environment(stage.admin)
    described["packages"] |= {package: version(package) for package in PACKAGES}
    postgres = [postgres_binaries() / "postgres", "--version"]
    told = subprocess.run(postgres, capture_output=True, text=True, check=True).stdout
    described["postgresql"] = f"PostgreSQL {told.split()[2]}"
    described["sqlite"] = sqlite3.sqlite_version
    return described


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description="Put a shop under load, with each guard against overselling in its turn.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute: is anything oversold? Rough figures"
    )
    parser.add_argument("--rounds", type=int, help="how often each sale is measured")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        help="directory for load.json, load.md and load.svg",
    )
    options = parser.parse_args()
    if options.docs:
        if options.quick or options.rounds:
            parser.error("--docs wants the long form; leave out --quick and --rounds")
        load = os.getloadavg()[0]
        if load > QUIET * len(os.sched_getaffinity(0)):
            parser.error(f"--docs wants a machine with nothing else to do; its load is {load:.2f}")
    return options


if __name__ == "__main__":
    sys.exit(main())
