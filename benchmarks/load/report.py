"""The results of the load run as markdown and as a picture, and what is demanded of them."""

import math
from collections.abc import Iterator
from operator import ge, le
from pathlib import Path
from typing import Any

from benchmarks.frame.environment import described
from benchmarks.frame.figures import NOTHING, number, ratio_spread
from benchmarks.frame.table import Column, Row, table
from benchmarks.frame.targets import Target, verdicts
from benchmarks.load.plan import CELLS, EAGER, FENCED, FEW, NONE, OURS, TITLES
from benchmarks.load.shop.names import POSTGRESQL, SQLITE

ONE_OURS, FEW_OURS = "sales.PostgreSQL.one.ours", "sales.PostgreSQL.few.ours"
THOUSAND = "waiting.PostgreSQL.1000.ours"
TARGETS = (
    Target("orders/s over redis-py, one product, 100 buyers", ONE_OURS, "speed.median", ge, 1.3),
    Target("p99 over redis-py, one product, 100 buyers", ONE_OURS, "p99_ratio.median", le, 0.1),
    Target("orders/s over redis-py, one product, 20 buyers", FEW_OURS, "speed.median", ge, 1.3),
    Target("p99 over redis-py, one product, 20 buyers", FEW_OURS, "p99_ratio.median", le, 0.1),
    Target(
        "1,000 waiting: Redis connections a process, besides the pool",
        THOUSAND,
        "listening_per_process",
        le,
        1,
    ),
    Target(  # 2 processes, each with a pool of 8 and one that listens
        "1,000 waiting: Redis connections, including the pools",
        THOUSAND,
        "redis_connections",
        le,
        18,
    ),
    Target("1,000 waiting: database connections", THOUSAND, "database_connections", le, 0),
)


def _milliseconds(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else number(round(1000 * value, 1))


def _fault(value: int | None) -> str:
    return f"**{number(value)}**" if value else "0" if value == 0 else NOTHING


SALE = (
    Column("orders_per_second", "orders/s", number),
    Column("speed", "ratio to redis-py", ratio_spread),
    Column("p50", "p50 ms", _milliseconds),
    Column("p99", "p99 ms", _milliseconds),
    Column("p99_ratio", "p99, ratio to redis-py", ratio_spread),
    Column("longest", "longest wait ms", _milliseconds),
    Column("served", "least to most orders of a buyer"),
    Column("oversold", "oversold", _fault),
    Column("errors", "refused or failed", _fault),
    Column("requests_per_order", "requests to Redis an order", number),
    Column("commands_per_order", "Redis commands an order, including in scripts", number),
    Column("processor_ms_per_order", "web server's CPU ms an order", number),
)
RUSH = (
    Column("orders", "orders", number),
    Column("oversold", "oversold", _fault),
    Column("paid_for_nothing", "paid for nothing", _fault),
)
WAITING = (
    Column("buyers", "waiting", number),
    Column("processes", "processes", number),
    Column("redis_connections", "Redis connections", number),
    Column("redis_listening", "of these only listening", number),
    Column("database_connections", "database connections", number),
    Column("commands_per_second", "Redis commands/s while all wait", number),
    Column("drained_per_second", "then served, orders/s", number),
    Column("errors", "refused after 60 s", _fault),
)
BYSTANDERS = (
    Column("bystander_p50", "page p50 ms", _milliseconds),
    Column("bystander_p99", "page p99 ms", _milliseconds),
    Column("bystander_longest", "page longest ms", _milliseconds),
    Column("orders_per_second", "orders/s meanwhile", number),
)


def markdown(results: dict[str, Any], note: str = "") -> str:
    return "\n\n".join(part for part in (note, *_parts(results)) if part) + "\n"


def broken(results: dict[str, Any]) -> Iterator[str]:
    """Yield what must not happen: a guarded shop that oversells, or an error with our locks.

    An unguarded shop must oversell in the rush; otherwise the run shows nothing.
    """
    for where, slug, row in _rows(results):
        if slug != NONE and row["oversold"]:
            yield f"{where}: {TITLES[slug]} oversold {row['oversold']}"
        if slug in (OURS, FENCED) and row["errors"]:
            yield f"{where}: {TITLES[slug]} answered {row['errors']} requests with an error"
        if slug == NONE and where.startswith("rush") and not row["oversold"]:
            yield f"{where}: the shop without a guard did not oversell"


def draw(results: dict[str, Any], path: Path) -> None:
    from benchmarks.frame import picture

    database = POSTGRESQL if POSTGRESQL in results["sales"] else SQLITE
    sales = results["sales"].get(database, {})
    charts = [
        (f"Orders a second: {CELLS[cell].title.lower()}", rows, "orders_per_second")
        for cell, rows in sales.items()
        if cell != FEW.slug
    ]
    if sales:
        first = next(iter(sales.values()))
        charts.append(("p99 of a buyer's wait: one hot product, 100 buyers", first, "p99"))
    if found := results["bystanders"]:
        charts.append(("p99 of a page of another product meanwhile", found, "bystander_p99"))

    def chart(title: str, rows: dict[str, Row], key: str) -> picture.BarChart:
        wait = key != "orders_per_second"
        bars = []
        for slug in TITLES:
            if slug in rows and slug != EAGER:
                value = rows[slug][key] * (1000 if wait else 1)
                ours = slug.startswith(OURS)
                colour = picture.OURS if ours else picture.PEER
                if rows[slug]["oversold"]:
                    colour = picture.WARNING
                served = value > 0  # also False for NaN, the wait when nobody was served
                text = number(round(value, 1)) if served else "nobody served"
                bar = picture.Bar(value if served else None, text, colour)
                bars.append(picture.Bars(TITLES[slug].replace("`", ""), ours, [bar]))
        axis = "ms, log scale; lower is better" if wait else "orders/s; higher is better"
        return picture.BarChart(title, axis, bars, log=wait)

    title = f"A flash sale on {database}, one run; orange: oversold"
    note = "QUICK FORM, ROUGH FIGURES" if results["quick"] else ""
    picture.draw([chart(*each) for each in charts], title, note, path)


def _parts(results: dict[str, Any]) -> Iterator[str]:
    if results["quick"]:
        yield "**The quick form checks that nothing is oversold; the figures are rough.**"
    yield described(results["environment"])
    if results["targets"]:
        yield verdicts(results["targets"])
    for database, cells in results["sales"].items():
        for slug, rows in cells.items():
            yield f"### {database}: {CELLS[slug].title}"
            yield table(SALE, _titled(rows))
    for database, rows in results["rush"].items():
        yield f"### {database}: a rush of 100 buyers for 50 units, with a payment of 5 ms"
        yield table(RUSH, _titled(rows))
    for database, crowds in results["waiting"].items():
        yield f"### {database}: connections while buyers wait"
        yield table(WAITING, [each for rows in crowds.values() for each in _titled(rows)])
    if results["bystanders"]:
        yield "### PostgreSQL: a page of another product, while 100 buyers want the hot one"
        yield table(BYSTANDERS, _titled(results["bystanders"]))


def _titled(rows: dict[str, Row]) -> list[tuple[str, Row]]:
    return [(TITLES[slug], rows[slug]) for slug in TITLES if slug in rows]


def _rows(results: dict[str, Any]) -> Iterator[tuple[str, str, Row]]:
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
