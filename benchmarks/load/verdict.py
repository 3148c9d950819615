"""What must not happen in any run, and the figures that the long form is asked for."""

from collections.abc import Iterator
from operator import ge, le
from typing import Any

from benchmarks.show import dig, number

from .plan import FENCED, NONE, OURS, TITLES

Results = dict[str, Any]

TARGETS = (
    ("orders/s over redis-py, one product, 100 buyers", "sales.PostgreSQL.one.ours.speed", ge, 1.3),
    ("p99 over redis-py, one product, 100 buyers", "sales.PostgreSQL.one.ours.p99_ratio", le, 0.1),
    ("orders/s over redis-py, one product, 20 buyers", "sales.PostgreSQL.few.ours.speed", ge, 1.3),
    ("p99 over redis-py, one product, 20 buyers", "sales.PostgreSQL.few.ours.p99_ratio", le, 0.1),
    (
        "1,000 waiting: Redis connections a process, beside the pool",
        "waiting.PostgreSQL.1000.ours.listening_per_process",
        le,
        1,
    ),
    (
        "1,000 waiting: Redis connections, the pools included",
        "waiting.PostgreSQL.1000.ours.redis_connections",
        le,
        18,  # 2 processes, each with a pool of 8 and one that listens
    ),
    (
        "1,000 waiting: database connections",
        "waiting.PostgreSQL.1000.ours.database_connections",
        le,
        0,
    ),
)


def judged(results: Results) -> Iterator[Results]:
    """Yield each target that was measured, with the figure and whether it is met."""
    for what, path, meets, bound in TARGETS:
        value = dig(results, path)
        if isinstance(value, dict):
            value = value["median"]
        if value is not None:
            words = "at least" if meets is ge else "at most"
            target = f"{words} {number(bound)}"
            yield {"what": what, "target": target, "value": value, "met": meets(value, bound)}


def broken(results: Results) -> Iterator[str]:
    """Yield what must not happen: a guarded shop that oversells, or an error behind our locks.

    An unguarded shop has to oversell in the rush; if it does not, the run shows nothing.
    """
    for where, slug, row in _rows(results):
        if slug != NONE and row["oversold"]:
            yield f"{where}: {TITLES[slug]} oversold {row['oversold']}"
        if slug in (OURS, FENCED) and row["errors"]:
            yield f"{where}: {TITLES[slug]} answered {row['errors']} requests with an error"
        if slug == NONE and where.startswith("rush") and not row["oversold"]:
            yield f"{where}: the shop without a guard did not oversell"


def _rows(results: Results) -> Iterator[tuple[str, str, Results]]:
    """Yield every row that was measured, with its place and its guard."""
    for database, cells in results["sales"].items():
        for cell, rows in cells.items():
            for slug, row in rows.items():
                yield f"sale, {database}, {cell}", slug, row
    for database, rows in results["rush"].items():
        for slug, row in rows.items():
            yield f"rush, {database}", slug, row
    for database, crowds in results["waiting"].items():
        for buyers, rows in crowds.items():
            for slug, row in rows.items():
                yield f"{buyers} waiting, {database}", slug, row
    for slug, row in results["bystanders"].items():
        yield "bystanders", slug, row
