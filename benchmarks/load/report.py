"""The results of the load run as markdown and as a picture, and what is demanded of them."""

from collections.abc import Callable, Iterator
from operator import ge, le
from pathlib import Path
from typing import Any

from benchmarks.frame.environment import described
from benchmarks.frame.figures import NOTHING, Spread, number, ratio_spread
from benchmarks.frame.table import Column, Row, table
from benchmarks.frame.targets import Target, verdicts
from benchmarks.load.plan import (
    ADVISORY,
    CELLS,
    COUNTER,
    EAGER,
    FENCED,
    FEW,
    NONE,
    OURS,
    TITLES,
    UNITS,
    UPDATE,
)
from benchmarks.load.quiet import sentence
from benchmarks.load.shop.names import POSTGRESQL

ONE_OURS, FEW_OURS = "sales.PostgreSQL.one.ours", "sales.PostgreSQL.few.ours"
THOUSAND = "waiting.1000.ours"
TARGETS = (
    Target("orders/s over redis-py, one product, 100 buyers", ONE_OURS, "speed.median", ge, 1.3),
    Target("p99 over redis-py, one product, 100 buyers", ONE_OURS, "p99_ratio.median", le, 0.1),
    Target("orders/s over redis-py, one product, 20 buyers", FEW_OURS, "speed.median", ge, 1.3),
    Target("p99 over redis-py, one product, 20 buyers", FEW_OURS, "p99_ratio.median", le, 0.1),
    Target(
        "1,000 waiting: Redis connections a process, besides the pool",
        THOUSAND,
        "listening_per_process.max",
        le,
        1,
    ),
    Target(  # 2 processes, each with a pool of 8 and one that listens
        "1,000 waiting: Redis connections, including the pools",
        THOUSAND,
        "redis_connections.max",
        le,
        18,
    ),
    Target("1,000 waiting: database connections", THOUSAND, "database_connections.max", le, 0),
)
BUYERS = ", 100 buyers"
"""What all loads in the picture have in common."""
FLAWLESS = (UPDATE, UNITS, COUNTER, ADVISORY, OURS, FENCED)
"""Guards with which no request may fail. Those who wait for the others may be refused."""


def _milliseconds(seconds: float) -> str:
    return number(round(1000 * seconds, 1))


def _ranged(show: Callable[[float], str]) -> Callable[[Spread | None], str]:
    def text(value: Spread | None) -> str:
        if value is None:
            return NOTHING
        least, middle, most = (show(value[key]) for key in ("min", "median", "max"))
        return middle if least == most else f"{middle} ({least} to {most})"

    return text


def _most(seconds: float | None) -> str:
    return NOTHING if seconds is None else _milliseconds(seconds)


def _fault(value: int | None) -> str:
    return f"**{number(value)}**" if value else "0" if value == 0 else NOTHING


SALE = (
    Column("orders_per_second", "orders/s", _ranged(number)),
    Column("speed", "ratio to redis-py", ratio_spread),
    Column("p50", "p50 ms", _ranged(_milliseconds)),
    Column("p99", "p99 ms", _ranged(_milliseconds)),
    Column("p99_ratio", "p99, ratio to redis-py", ratio_spread),
    Column("longest.max", "longest wait ms", _most),
    Column("served", "least to most orders of a buyer"),
    Column("oversold", "oversold", _fault),
    Column("errors", "refused or failed", _fault),
    Column("requests_per_order", "requests to Redis an order", _ranged(number)),
    Column("processor_ms_per_order", "web server's CPU ms an order", _ranged(number)),
)
RUSH_COLUMNS = (
    Column("orders", "orders", _ranged(number)),
    Column("oversold", "oversold", _fault),
    Column("unsold", "unsold", _fault),
    Column("paid_for_nothing", "paid for nothing", _ranged(number)),
    Column("sold_within", "last order after ms", _ranged(_milliseconds)),
    Column("told_sold_out", "half of the others told after ms", _ranged(_milliseconds)),
)
WAITING = (
    Column("buyers", "waiting", _ranged(number)),
    Column("processes", "processes", _ranged(number)),
    Column("redis_connections", "Redis connections", _ranged(number)),
    Column("redis_listening", "of these only listening", _ranged(number)),
    Column("database_connections", "database connections", _ranged(number)),
    Column("commands_per_second", "Redis commands/s while all wait", _ranged(number)),
    Column("drained_per_second", "then served, orders/s", _ranged(number)),
    Column("errors", "refused after 60 s", _fault),
)
BYSTANDERS = (
    Column("bystander_p50", "page p50 ms", _ranged(_milliseconds)),
    Column("bystander_p99", "page p99 ms", _ranged(_milliseconds)),
    Column("bystander_longest.max", "page longest ms", _most),
    Column("orders_per_second", "orders/s meanwhile", _ranged(number)),
)


def markdown(results: dict[str, Any], note: str = "") -> str:
    return "\n\n".join(part for part in (note, *_parts(results)) if part) + "\n"


def broken(results: dict[str, Any]) -> Iterator[str]:
    """Yield what must not happen: a guarded shop that oversells, turns buyers away from units that
    it has, or answers with an error where no wait may run out.

    An unguarded shop must oversell in the rush; otherwise the run shows nothing.
    """
    for where, slug, row in _rows(results):
        if slug != NONE and row["oversold"]:
            yield f"{where}: {TITLES[slug]} oversold {row['oversold']}"
        if slug != NONE and row.get("unsold"):
            yield f"{where}: {TITLES[slug]} sold {row['unsold']} too few"
        if slug in FLAWLESS and row["errors"]:
            yield f"{where}: {TITLES[slug]} answered {row['errors']} requests with an error"
        if slug == NONE and where.startswith("rush") and not row["oversold"]:
            yield f"{where}: the shop without a guard did not oversell"


def draw(results: dict[str, Any], path: Path) -> None:
    from benchmarks.frame import picture

    title = f"A flash sale on PostgreSQL: {_of_rounds(results).lower()}"
    note = "100 buyers; orange: oversold"
    if results["quick"]:
        note = f"QUICK FORM, ROUGH FIGURES; {note}"
    picture.draw(list(_charts(results)), title, note, path)


def _charts(results: dict[str, Any]) -> Iterator[Any]:
    sales = results["sales"].get(POSTGRESQL, {})
    for cell, rows in sales.items():
        if cell != FEW.slug:
            title = CELLS[cell].title.lower().replace(BUYERS, "")
            yield _chart(f"Orders/s: {title}", rows, "orders_per_second")
    if sales:
        first = next(iter(sales.values()))
        yield _chart("p99 of a buyer's wait: one hot product", first, "p99")
    if rows := results["rush"].get(POSTGRESQL):
        yield _chart("A rush for 50 units: time until the last is sold", rows, "sold_within")
    if rows := results["bystanders"]:
        yield _chart("p99 of a page of another product meanwhile", rows, "bystander_p99")


def _chart(title: str, rows: dict[str, Row], key: str) -> Any:
    from benchmarks.frame import picture

    wait = key != "orders_per_second"
    bars = []
    for slug in TITLES:
        if slug in rows and slug != EAGER:
            found = rows[slug][key]
            least, value, most = (
                found[at] * (1000 if wait else 1) if found else 0 for at in ("min", "median", "max")
            )
            ours = slug.startswith(OURS)
            colour = picture.OURS if ours else picture.PEER
            if rows[slug]["oversold"]:
                colour = picture.WARNING
            text = number(round(value, 1)) if value else "nobody served"
            bar = picture.Bar(value or None, text, colour, (least, most) if value else None)
            bars.append(picture.Bars(TITLES[slug].replace("`", ""), ours, [bar]))
    axis = "ms, log scale; lower is better" if wait else "orders/s; higher is better"
    return picture.BarChart(title, axis, bars, log=wait)


def _parts(results: dict[str, Any]) -> Iterator[str]:
    if results["quick"]:
        yield "**The quick form checks that nothing is oversold; the figures are rough.**"
    yield described(results["environment"])
    yield f"{sentence(results['machine'])} {_of_rounds(results)}."
    if results["targets"]:
        yield verdicts(results["targets"])
    for database, cells in results["sales"].items():
        for slug, rows in cells.items():
            yield f"### {database}: {CELLS[slug].title}"
            yield table(SALE, _titled(rows))
    for database, rows in results["rush"].items():
        yield f"### {database}: a rush of 100 buyers for 50 units, with a payment of 5 ms"
        yield table(RUSH_COLUMNS, _titled(rows))
    if results["waiting"]:
        yield "### PostgreSQL: connections while buyers wait or pay"
        crowds = results["waiting"].values()
        yield table(WAITING, [each for rows in crowds for each in _titled(rows)])
    if results["bystanders"]:
        yield "### PostgreSQL: a page of another product, while 100 buyers want the hot one"
        yield table(BYSTANDERS, _titled(results["bystanders"]))


def _of_rounds(results: dict[str, Any]) -> str:
    rounds = results["rounds"]
    return "One round" if rounds == 1 else f"Medians of {rounds} rounds, with their ranges"


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
    for buyers, rows in results["waiting"].items():
        for slug, row in rows.items():
            yield f"{buyers} waiting", slug, row
    for slug, row in results["bystanders"].items():
        yield "bystanders", slug, row
