"""What the commands share: the backends that they ask, and how they write results and notices."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.operators import Outcome, attention_of, in_units, sharing, unwritable_because
from django_redis_lock.protocol.records import AuditEntry, Holder
from django_redis_lock.support.text import escape_unprintable, without_passwords

ERROR, USAGE, NOT_KNOWN, NOTHING, INTERRUPTED = 1, 2, 2, 3, 130
"""Exit codes: an error; wrong usage; a server is unavailable; the holder changed, or nothing
matched; Ctrl-C."""
usage, nothing = (partial(CommandError, returncode=code) for code in (USAGE, NOTHING))

REMEDIES = {
    "read only replica": "Set LOCATION to the primary; after a failover, try again.",
    "maxmemory": "Raise the server's maxmemory, or delete other data there.",
    "MISCONF": "Let the server write to its disk: its log says why it can't.",
    "NOREPLICAS": "Start the missing replicas, or lower the server's min-replicas-to-write.",
}
"""What to do if a server refuses writes, by a part of its error."""
Row = dict[str, Any]
"""The facts of a holder, a waiter, an event and so on: an item of JSON, and a row of a table."""
CELLS = 4
"""How many of the longest cells a line of a terminal has room for; in a pipe nothing is cut."""
SCHEMA = 1
"""The version of the JSON; it rises when a key is removed or changes its meaning."""
BATCH = 250
"""Rows per write."""

UNKNOWN = "-"
"""Shown for an absent value, whose text is empty."""
_encode = json.JSONEncoder(check_circular=False, default=datetime.isoformat).encode


class Backends:
    """The backends that a command asks, and those that did not answer."""

    def __init__(self, using: str | None, terminal: Terminal) -> None:
        self._using, self.terminal = using, terminal
        self.all: list[BaseLockBackend] = []
        """The backends with valid settings."""
        self.silent: dict[str, str] = {}
        self._errors: list[Exception] = []
        self._warned = False
        self.aliases = aliases_of(using)
        self.many = len(self.aliases) > 1
        """Whether there is more than one, so that tables name the backend."""
        for alias in self.aliases:
            with self.noting(alias):
                self.all.append(locks[alias])
        self.alone = [one for one in self.all if one.excludes]
        for one in self.alone:
            which = f"LOCKS[{one.alias!r}] uses {type(one).__name__}"
            terminal.notice(f"{which}, which neither shows nor locks out other processes.")

    def each(self, ask: Callable[[BaseLockBackend], Iterable[Any]]) -> Iterator[Any]:
        """Yield what each backend answers; note one that is unavailable, and ask it no more."""
        for backend in self.all:
            if backend.alias not in self.silent:
                with self.noting(backend.alias):
                    yield from ask(backend)

    @contextmanager
    def noting(self, alias: str) -> Iterator[None]:
        """End the block with a notice if a backend is unavailable."""
        try:
            yield
        except ValueError as error:  # an invalid name
            raise usage(str(error)) from error
        except (LockError, InvalidLockBackend) as error:
            text = without_passwords(str(error))
            if getattr(error, "refused", False):
                remedies = (remedy for part, remedy in REMEDIES.items() if part in text)
                text = ". ".join([text.rstrip("."), *remedies])
            if self._using and isinstance(error, InvalidLockBackend):
                raise CommandError(escape_unprintable(text)) from error
            if self.silent.setdefault(alias, text) is text:
                self.terminal.notice(text)
            self._errors.append(error)

    def write(self, key: str, rows: Iterable[Row], columns: Iterable[Column]) -> None:
        """Write rows as JSON, with what is not known; or as a table."""
        if self.terminal.as_json:
            self.terminal.json_object(key, rows, self.not_known)
        else:
            shown = [one for one in columns if self.many or one.heading != "USING"]
            self.terminal.table(shown, rows)

    def write_holders(self, holders: Iterable[Holder], *columns: Column) -> None:
        """Write holders, with further columns; those of one lock come together in a table."""
        rows: Iterable[Row] = map(holder_facts, holders)
        if not self.terminal.as_json:
            rows = _together(rows)
        self.write("locks", rows, [*HOLDER, *columns])

    def not_known(self) -> Row:
        """Return for JSON which backends did not answer, and why."""
        return {"not_known": [{"using": one, "error": why} for one, why in self.silent.items()]}

    def warn_of_unwritable(self) -> None:
        """Warn once of servers that answered but refuse writes: a replica may lack data."""
        for backend in () if self._warned else self.all:
            if backend.alias not in self.silent and (why := unwritable_because(backend)):
                self.terminal.notice(str(why))
        self._warned = True

    def finish(self, change: str = "") -> None:
        """Raise ``CommandError`` if a backend could not be read, or did not make a change."""
        self.warn_of_unwritable()
        if self.silent:
            which = ", ".join(map(repr, self.silent))
            refused = change and all(getattr(error, "refused", False) for error in self._errors)
            misconfigured = all(isinstance(error, InvalidLockBackend) for error in self._errors)
            code = ERROR if refused or misconfigured else NOT_KNOWN
            did = f"The server of {which} {'refused' if refused else 'failed'} to {change}"
            text = did if change else f"The locks of {which} could not be read"
            raise CommandError(f"{text}; see above.", returncode=code)


def aliases_of(using: str | None) -> list[str]:
    """Return the chosen alias, or all. Raises ``CommandError`` for an unknown one."""
    try:
        known = list(locks)
    except InvalidLockBackend as error:
        raise CommandError(without_passwords(str(error))) from error
    if using is not None and using not in known:
        there = ", ".join(map(repr, known)) or "none"
        raise usage(f"LOCKS has no alias {using!r}. Configured aliases: {there}.")
    return (known or [DEFAULT_ALIAS]) if using is None else [using]  # its error says what to write


def hint_at_pattern(name: str, way: str) -> str:
    if not any(character in name for character in "*?["):
        return ""
    return f" For a pattern, use: {way} {shlex.quote(escape_unprintable(name))}"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def text(value: object) -> str:
    return "" if value is None else str(value)


class Column(NamedTuple):
    """A column for the fact that it is named after, or for another ``key``."""

    heading: str
    show: Callable[[Any], str] = text
    right: bool = False
    optional: bool = False
    """Whether to leave it out if nothing is in it, or a terminal is too narrow."""
    key: str = ""

    def cell(self, row: Row) -> str:
        key = self.key or self.heading.removesuffix(" (UTC)").lower().replace(" ", "_")
        return escape_unprintable(self.show(row[key]))


class Terminal:
    """The two streams of the command, and what they can show."""

    def __init__(self, command: BaseCommand, options: dict[str, Any]) -> None:
        self._out, self._err = command.stdout, command.stderr
        self.as_json = options.get("format") == "json"
        coloured = self._out.isatty() and not os.environ.get("NO_COLOR")
        self.style: Any = command.style if coloured or options["force_color"] else no_style()

    def say(self, text: str = "", paint: Callable[[str], str] = str) -> None:
        """Write a line, with invisible characters shown."""
        self._out.write(paint(escape_unprintable(text)))

    def notice(self, text: str) -> None:
        """Write a notice to standard error, without passwords."""
        self._err.write(escape_unprintable(without_passwords(text)))

    def table(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """Write a table as its rows are read; holders that need attention are coloured."""
        remaining = iter(rows)
        width = shutil.get_terminal_size().columns if self._out.isatty() else None
        widths: dict[Column, int] = {}
        while batch := list(islice(remaining, BATCH)):
            if not widths and len(batch) < BATCH:  # these are all rows
                columns = [one for one in columns if not one.optional or any(map(one.cell, batch))]
            texts = {one: [one.cell(row) or UNKNOWN for row in batch] for one in columns}
            if not widths:
                widths = _fit(texts, width)
                columns = list(widths)
                headings = [one.heading for one in columns]
                self.say(_line(widths, headings, width), self.style.MIGRATE_HEADING)
            lines = []
            for row, *cells in zip(batch, *(texts[one] for one in columns), strict=True):
                line = _line(widths, cells, width)
                lines.append(self.style.WARNING(line) if row.get("attention") else line)
            self._out.write("\n".join(lines))
            self._out.flush()

    def json_object(self, name: str, items: Iterable[Any], more: Callable[[], Row]) -> None:
        """Write a JSON object of the items as they are read, and of what there is more."""
        line, comma, end = f'{{"schema": {SCHEMA}, {json.dumps(name)}: [', "", ""
        for item in items:  # a line waits for the next item, which may come after a notice
            self._out.write(line + comma)
            line, comma, end = _encode(item), ",", "\n"
        rest = (f", {json.dumps(key)}: {_encode(item)}" for key, item in more().items())
        self._out.write(f"{line}{end}]{''.join(rest)}}}")

    def ask(self, question: str, done: str) -> str:
        """Ask on standard error before something is done; return the answer."""
        answer = ""
        try:
            self._err.write(f"{question} ", ending="")
            self._err.flush()
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            text = f"Interrupted: nothing was {done}."
            raise CommandError(text, returncode=INTERRUPTED) from None
        finally:
            if not answer.endswith("\n"):
                self._err.write("")
        return answer.strip()

    def confirm(self, question: str, done: str) -> None:
        """Raise ``CommandError`` unless the user agrees. No input means no."""
        if self.ask(f"{question} [y/N]", done).lower() not in ("y", "yes"):
            raise CommandError(f"Declined: nothing was {done}. Use --noinput to skip the question.")


def _fit(texts: dict[Column, list[str]], most: int | None) -> dict[Column, int]:
    """Return columns and widths for lines of at most ``most`` characters; the widest lose most."""
    widths = {one: max(map(len, [one.heading, *each])) for one, each in texts.items()}
    if most is None:
        return widths
    room = most - 2 * (len(widths) - 1)
    while sum(widths.values()) > room and max(widths.values()) > most // CELLS:
        widths[max(widths, key=lambda one: widths[one])] -= 1
    needed = {one: each for one, each in texts.items() if not one.optional}
    return _fit(needed, most) if sum(widths.values()) > room and needed != texts else widths


def _line(widths: dict[Column, int], texts: Sequence[str], most: int | None) -> str:
    cells = [
        f"{_cut(text, most and width):{'<>'[one.right]}{width}}"
        for (one, width), text in zip(widths.items(), texts, strict=True)
    ]
    return _cut("  ".join(cells).rstrip(), most)


def _cut(text: str, width: int | None) -> str:
    """Cut a text to a width, if it has one, ending in an ellipsis."""
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


LEFT_OUT = ("ttl", "lease", "pid_space", "pid_began", "cut")
"""Fields that the facts of a holder lack, or have under another name."""


def holder_facts(holder: Holder) -> Row:
    named = {"name": holder.name, "using": holder.using, "holder": str(holder)}
    known = {"lease_left": _rounded(holder.ttl), "attention": attention_of(holder)}
    return {**named, **facts(holder, LEFT_OUT), **known}


def entry_facts(entry: AuditEntry) -> Row:
    return {"holder": str(entry), **facts(entry)}


def outcome_facts(outcome: Outcome) -> Row:
    return {
        **{key: getattr(outcome.shown, key) for key in ("name", "using", "token_id")},
        "result": outcome.result.value,
        "holder_now": outcome.holder and str(outcome.holder),
        "error": outcome.error or None,
    }


def facts(one: Any, without: Sequence[str] = ()) -> Row:
    """Return the fields of a dataclass."""
    names = (each.name for each in fields(one) if each.name not in without)
    return {name: _rounded(getattr(one, name)) for name in names}


def _together(rows: Iterable[Row]) -> Iterator[Row]:
    """Make rows of a table, in which further holders of a lock repeat nothing of the first."""
    last = None
    for row in rows:
        lock = row["using"], row["name"]
        row["shared"] = sharing_of(row)
        if lock == last:
            row.update(name=f"  {row['name']}", waiters=" ", shared=" ")
        yield row
        last = lock


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def clock(moment: datetime | None) -> str:
    """Return a time in UTC with seconds, for people."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: ``4.2s``, ``3m12s``, ``2h05m``, ``3d``."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    (amount, unit), *rest = in_units(round(seconds))
    return f"{amount}{unit}{''.join(f'{less:02}{smaller}' for less, smaller in rest)}"


def sharing_of(row: Row) -> str:
    return sharing(row["shared"], row["limit"], row.get("holders"))


number = partial(Column, right=True)
AT = Column("AT (UTC)", clock)
ASIDE = [Column("NAME"), Column("USING"), AT, Column("REASON")]
HOLDER = [
    *map(Column, ("NAME", "USING", "HOLDER")),
    number("HELD FOR", duration),
    number("LEASE LEFT", lambda left: duration(left) or "no expiry"),
    number("WAITERS", lambda waiters: text(waiters) or "?"),
    Column("ATTENTION"),
    number("SHARED", optional=True),
    number("FENCE", optional=True),
]
