"""The results as markdown: for the terminal, for a file, and for a page of the documentation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import grid
from benchmarks.show import NOTHING, number, ratio_spread

from .plan import CELLS, TITLES
from .shop.names import POSTGRESQL, SQLITE

BEGIN = "<!-- begin: make load -->"
END = "<!-- end: make load -->"

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def _milliseconds(key: str) -> Callable[[Row], str]:
    return lambda row: number(round(1000 * row[key], 1)) if row[key] == row[key] else NOTHING


def _count(key: str) -> Callable[[Row], str]:
    return lambda row: number(row[key]) if row.get(key) is not None else NOTHING


def _fault(key: str) -> Callable[[Row], str]:
    return lambda row: f"**{number(row[key])}**" if row[key] else "0"


SALE: tuple[Column, ...] = (
    ("orders/s", _count("orders_per_second")),
    ("ratio to redis-py", lambda row: ratio_spread(row["speed"])),
    ("p50 ms", _milliseconds("p50")),
    ("p99 ms", _milliseconds("p99")),
    ("p99, ratio to redis-py", lambda row: ratio_spread(row["p99_ratio"])),
    ("longest wait ms", _milliseconds("longest")),
    (
        "least to most orders of a buyer",
        lambda row: f"{row['least_served']} to {row['most_served']}",
    ),
    ("oversold", _fault("oversold")),
    ("refused or failed", _fault("errors")),
    ("requests to Redis an order", _count("requests_per_order")),
    ("Redis commands an order, in scripts too", _count("commands_per_order")),
    ("server's CPU ms an order", _count("processor_ms_per_order")),
)
WAITING: tuple[Column, ...] = (
    ("waiting", _count("buyers")),
    ("processes", _count("processes")),
    ("Redis connections", _count("redis_connections")),
    ("of these only listening", _count("redis_listening")),
    ("database connections", _count("database_connections")),
    ("Redis commands/s while all wait", _count("commands_per_second")),
    ("then served, orders/s", _count("drained_per_second")),
    ("refused after 60 s", _fault("errors")),
)
BYSTANDERS: tuple[Column, ...] = (
    ("page p50 ms", _milliseconds("bystander_p50")),
    ("page p99 ms", _milliseconds("bystander_p99")),
    ("page longest ms", _milliseconds("bystander_longest")),
    ("orders/s meanwhile", _count("orders_per_second")),
)


def markdown(results: dict[str, Any]) -> str:
    """Return everything that was measured."""
    return "\n\n".join(_parts(results)) + "\n"


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}; the tables go between.")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def _parts(results: dict[str, Any]) -> Iterator[str]:
    if results["quick"]:
        yield "**The quick form: it checks that nothing is oversold; the figures are rough.**"
    yield _versions(results["environment"])
    if results["targets"]:
        rows = [
            (
                target["what"],
                target["target"],
                number(target["value"]),
                "met" if target["met"] else "**not met**",
            )
            for target in results["targets"]
        ]
        yield grid(("target", "asked for", "measured", ""), rows)
    for database in (POSTGRESQL, SQLITE):
        for slug, rows in results["sales"].get(database, {}).items():
            yield f"### {database}: {CELLS[slug].title}"
            yield _table(rows, SALE)
    if results["rush"]:
        yield "### A rush: 100 buyers at one moment for 50 units, with a payment of 5 ms"
        yield _rush(results["rush"])
    for database, crowds in results["waiting"].items():
        yield f"### {database}: connections while buyers wait"
        rows = [
            (TITLES[slug], *(show(row) for _, show in WAITING))
            for found in crowds.values()
            for slug, row in found.items()
        ]
        yield grid(("", *(heading for heading, _ in WAITING)), rows)
    if results["bystanders"]:
        yield "### PostgreSQL: a page of another product, while 100 buyers want the hot one"
        yield _table(results["bystanders"], BYSTANDERS)


def _table(rows: dict[str, Row], columns: tuple[Column, ...]) -> str:
    body = [
        (TITLES[slug], *(show(rows[slug]) for _, show in columns))
        for slug in TITLES
        if slug in rows
    ]
    return grid(("", *(heading for heading, _ in columns)), body)


def _rush(found: dict[str, dict[str, Row]]) -> str:
    columns = (
        ("orders", _count("orders")),
        ("oversold", _fault("oversold")),
        ("paid for nothing", _fault("paid_for_nothing")),
    )
    head = [f"{database}: {heading}" for database in found for heading, _ in columns]
    body = [
        (
            TITLES[slug],
            *(
                show(rows[slug]) if slug in rows else NOTHING
                for rows in found.values()
                for _, show in columns
            ),
        )
        for slug in TITLES
        if any(slug in rows for rows in found.values())
    ]
    return grid(("", *head), body)


def _versions(environment: dict[str, Any]) -> str:
    packages = ", ".join(
        f"{name} {version}" for name, version in environment["packages"].items() if version
    )
    return (
        f"{environment['date'][:10]}, {environment['python']}, {environment['server']}, "
        f"{environment['postgresql']}, SQLite {environment['sqlite']}, "
        f"{environment['cpus']} CPUs ({environment['processor']}), "
        f"load {environment['load_at_start']} at the start; {packages}."
    )
