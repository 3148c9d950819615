"""The results of a sizing run as markdown, and what must not happen in one."""

from collections.abc import Iterator
from typing import Any

from benchmarks.frame.environment import described
from benchmarks.frame.figures import NOTHING, number
from benchmarks.frame.table import Column, Row, grid, table

IN = "KB/s to the server"
OUT = "KB/s from it"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2g} %" if value < 10 else f"{value:.0f} %"


def _kilobytes(value: float) -> str:
    return number(value / 1000)


def _micro(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


FULL = (
    Column("rate", "a second", _whole),
    Column("server", "server's core in use", _share),
    Column("microseconds", "µs of it for each", _micro),
    Column("client_microseconds", "µs of a client for each", _micro),
)
HELD = (
    Column("processes", "processes", number),
    Column("renewals", "renewals/s", _whole),
    Column("server", "server's core", _share),
    Column("microseconds", "µs a renewal", _micro),
    Column("received", IN, _kilobytes),
    Column("sent", OUT, _kilobytes),
    Column("clients", "processes' cores", _share),
    Column("lost", "lost", number),
)
WAITING = (
    Column("connections", "connections more", number),
    Column("listening", "of these listening", number),
    Column("commands", "commands/s, in scripts too", _whole),
    Column("server", "server's core", _share),
    Column("clients", "process's core", _share),
    Column("kilobytes", "KB a waiter in the process", _whole),
    Column("bytes", "bytes a waiter on the server", _whole),
)


def markdown(results: dict[str, Any], note: str = "") -> str:
    return "\n\n".join(part for part in (note, *_parts(results)) if part) + "\n"


def broken(results: dict[str, Any]) -> Iterator[str]:
    """Yield what must not happen: a lock that was lost while its holder lived."""
    for row in results["hold"]:
        if row["lost"]:
            yield f"{row['lost']} of {row['locks']:,} held locks were lost"


def _parts(results: dict[str, Any]) -> Iterator[str]:
    if results["quick"]:
        yield "**The quick form shows that everything can be measured; the figures are rough.**"
    yield described(results["environment"])
    if results["weigh"]:
        (row,) = results["weigh"]
        yield f"A held lock takes {number(row['bytes'])} bytes of the server's memory."
    full = [("pairs, replayed", row) for row in results["replay"]]
    full += [(f"renewals, {_processes(row)}", row) for row in results["rush"]]
    if full:
        yield "### As fast as the server takes them"
        yield table(FULL, full)
    if rows := results["hold"]:
        yield f"### Held locks, a lease of {results['lease']} s, renewed after a third"
        yield table(HELD, [(f"{row['locks']:,}", row) for row in rows])
    if rows := results["wait"]:
        yield "### Waiters in one process, while they wait"
        yield table(WAITING, [(f"{row['waiters']:,} {row['kind']}", row) for row in rows])
    if len(examples := list(_examples(results))) > 1:
        yield "### With these figures"
        yield grid(("", "a server's core is full at"), examples)


def _examples(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a core of the server carries, by the formulae of the page."""
    for row in results["replay"]:
        yield "pairs a second", _whole(1_000_000 / row["microseconds"])
    if rows := results["rush"]:
        renewals = 1_000_000 / min(row["microseconds"] for row in rows)
        yield "renewals a second", _whole(renewals)
        for lease in (10, 30, 120):
            yield f"held locks with a lease of {lease} s", _whole(renewals * lease / 3)


def _processes(row: Row) -> str:
    return "1 process" if row["processes"] == 1 else f"{row['processes']} processes"
