"""``locks list``: who holds what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.console import facts
from django_redis_lock.console.durations import duration
from django_redis_lock.console.liveness import is_place
from django_redis_lock.console.selection import USAGE, Backends, in_order, nothing, peek
from django_redis_lock.console.table import Column, Paint, lines, shorten
from django_redis_lock.console.terminal import Terminal
from django_redis_lock.records import Holder
from django_redis_lock.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """List the held locks once, or again and again."""
    if options["watch"] is None:
        _list(options, terminal)
    elif terminal.as_json:
        raise CommandError("--watch goes with --format table only.", returncode=USAGE)
    else:
        _watch(options, terminal)


def _list(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal)
    found = _selected(options, backends)
    if terminal.as_json:
        some = peek(found)
        terminal.json_array(map(facts.holder_facts, some or ()))
    else:
        some = peek(found)
        terminal.table(columns(many=backends.many), some or ())
    backends.finish()
    if some is None:
        if options["pattern"] != "*" or options["older_than"] or options["queued"]:
            raise nothing(f"No held lock matches{_selection(options)}.")
        terminal.notice("No locks are held.")


def _selected(options: dict[str, Any], backends: Backends) -> Iterator[Holder]:
    found = backends.holders(options["pattern"])
    if options["older_than"]:
        found = (one for one in found if (one.held_for or 0.0) >= options["older_than"])
    if options["queued"]:
        found = filter(is_place, found)
    found = in_order(found, options["sort"], reverse=options["reverse"])
    return islice(found, options["limit"])


def _selection(options: dict[str, Any]) -> str:
    words = "" if options["pattern"] == "*" else f" {visible(options['pattern'])!r}"
    if options["older_than"]:
        words += f" and has been held for {duration(options['older_than'])}"
    if options["queued"]:
        words += " and is held for a message in a queue"
    return words


def columns(*, many: bool) -> list[Column[Holder]]:
    """Return the columns of a list of holders; with ``many`` backends each is named."""
    backend: list[Column[Holder]] = [Column("BACKEND", lambda one: visible(one.using))]
    return [
        Column("NAME", lambda one: visible(one.name), elastic=True),
        *(backend if many else []),
        Column("HOLDER", facts.who, elastic=True, brief=facts.brief),
        Column("HELD", facts.held_for, right=True),
        Column("LEASE LEFT", facts.lease_left, right=True),
        Column("WAITERS", lambda one: str(one.waiters), right=True, paint=_of_waiters),
        Column("FENCE", lambda one: str(one.fence or facts.UNKNOWN), right=True, spare=True),
    ]


def _of_waiters(holder: Holder, style: Any) -> Paint | None:
    return style.WARNING if holder.waiters else None


def _watch(options: dict[str, Any], terminal: Terminal) -> None:
    """Draw the list again and again until Ctrl-C."""
    try:
        while True:
            terminal.redraw(_frame(options, terminal))
            time.sleep(options["watch"])
    except KeyboardInterrupt:
        terminal.say()


def _frame(options: dict[str, Any], terminal: Terminal) -> str:
    problems = _Problems(terminal)
    backends = Backends(options["using"], problems)
    found = list(_selected(options, backends))
    moment = time.strftime("%H:%M:%S")
    head = [f"{moment}  {len(found)} held  every {options['watch']:g} s, Ctrl-C ends", ""]
    # Besides the locks there are a heading, perhaps a count of the rest, and the cursor's line.
    room = terminal.height - len(head) - len(problems.told) - 3 if terminal.is_interactive else None
    body = "\n".join(
        lines(
            columns(many=backends.many),
            found[:room],
            width=terminal.width,
            style=terminal.style,
        )
    )
    rest = [] if room is None or len(found) <= room else [f"... and {len(found) - room} more"]
    told = [terminal.style.ERROR(shorten(text, terminal.width or 1000)) for text in problems.told]
    return "\n".join([*head, *told, *([body] if body else []), *rest]) + "\n"


class _Problems(Terminal):
    """Keeps the notices of one frame, to be drawn in it."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(StringIO(), StringIO(), terminal.style, force_color=False, as_json=False)
        self.told: list[str] = []

    def notice(self, text: str) -> None:
        self.told.append(text)
