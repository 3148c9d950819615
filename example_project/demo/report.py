"""What the demo found, as tables."""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from django_redis_lock import Holder, locks


@dataclass(frozen=True)
class Figure:
    """A figure and its expected value."""

    what: str
    expected: str
    got: str
    ok: bool

    @classmethod
    def equal(cls, what: str, expected: object, got: object) -> "Figure":
        return cls(what, str(expected), str(got), expected == got)


@dataclass(frozen=True)
class Sighting:
    """A holder and when it was seen."""

    moment: str
    holder: Holder


def look(moment: str) -> list[Sighting]:
    return [Sighting(moment, holder) for holder in locks["default"].holders()]


def print_figures(console: Console, figures: list[Figure]) -> None:
    table = Table(title="What happened", title_justify="left")
    table.add_column("Figure")
    table.add_column("Expected", justify="right")
    table.add_column("Got", justify="right")
    table.add_column("")
    for figure in figures:
        verdict = "[green]ok[/]" if figure.ok else "[bold red]wrong[/]"
        table.add_row(escape(figure.what), escape(figure.expected), escape(figure.got), verdict)
    console.print(table)


def print_holders(console: Console, sightings: list[Sighting]) -> None:
    """Print the holders that were seen during the demo and those that hold a lock now."""
    table = Table(title="Who held which lock", title_justify="left")
    for heading in ("Seen", "Lock", "Holder", "Since"):
        table.add_column(heading)
    for heading in ("Lease left", "Waiting"):
        table.add_column(heading, justify="right")
    now = look("now")
    for sighting in [*sightings, *now]:
        holder = sighting.holder
        table.add_row(
            sighting.moment,
            escape(holder.name),
            escape(_short(holder)),
            f"{holder.acquired_at:%H:%M:%S}" if holder.acquired_at else "",
            "no end" if holder.ttl is None else f"{holder.ttl:.1f} s",
            str(holder.waiters),
        )
    if not now:
        table.add_row("now", "none is held", "", "", "", "")
    console.print(table)


def _short(holder: Holder) -> str:
    if holder.task_id is None or holder.task_name is None:
        return str(holder)
    task = holder.task_name.rpartition(".")[2]
    return f"{task}[{holder.task_id[:8]}] on {holder.host}:{holder.pid}"
