"""``locks list``: who holds what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django_redis_lock.management.console import facts, watching
from django_redis_lock.management.console.durations import duration
from django_redis_lock.management.console.selection import Backends, in_order, nothing, peek
from django_redis_lock.management.console.table import Column, Paint
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.operators.liveness import is_place
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """List the held locks once, or again and again."""
    if options["watch"] is None:
        _list(options, terminal)
    else:
        watching.watch(options, terminal)


def _list(options: dict[str, Any], terminal: Terminal) -> None:
    backends = Backends(options["using"], terminal)
    some = peek(selected(options, backends.holders(options["pattern"])))
    if terminal.as_json:
        terminal.json_object("locks", map(facts.holder_facts, some or ()), backends.not_known)
    else:
        legend = facts.Legend()
        terminal.table(columns(many=backends.many), legend.reading(some or ()))
        legend.say(terminal)
    backends.finish()
    if some is not None:
        backends.warn_of_unwritable()
    elif options["pattern"] != "*" or options["older_than"] or options["queued"]:
        raise nothing(f"No held lock matches{_selection(options)}.")
    else:
        terminal.notice("No locks are held.")


def selected(options: dict[str, Any], found: Iterator[Holder]) -> Iterator[Holder]:
    """Return those of the holders that the options mean, in their order."""
    found, limit = narrowed(options, found), options["limit"]
    return in_order(found, options["sort"], reverse=options["reverse"], limit=limit)


def narrowed(options: dict[str, Any], found: Iterator[Holder]) -> Iterator[Holder]:
    """Return those of the holders that are old enough, and of the kind that is asked for."""
    if options["older_than"]:
        found = (one for one in found if (one.held_for or 0.0) >= options["older_than"])
    return filter(is_place, found) if options["queued"] else found


def _selection(options: dict[str, Any]) -> str:
    words = "" if options["pattern"] == "*" else f" {visible(options['pattern'])!r}"
    if options["older_than"]:
        words += f" and has been held for {duration(options['older_than'])}"
    if options["queued"]:
        words += " and is held for a message in a queue"
    return words


def columns(*, many: bool) -> list[Column[Holder]]:
    """Return the columns of a list of holders; with ``many`` backends each is named."""
    using: list[Column[Holder]] = [Column("USING", lambda one: visible(one.using))]
    return [
        Column("NAME", lambda one: visible(one.name), elastic=True),
        *(using if many else []),
        Column("HOLDER", facts.who, elastic=True, brief=facts.brief),
        Column("HELD FOR", facts.held_for, right=True, paint=_of_mark),
        Column("LEASE LEFT", facts.lease_left, right=True),
        Column("WAITERS", facts.waiters, right=True),
        Column("ATTENTION", facts.mark, spare=True, paint=_of_mark),
        Column("FENCE", lambda one: str(one.fence or facts.UNKNOWN), right=True, spare=True),
    ]


def _of_mark(holder: Holder, style: Any) -> Paint | None:
    return style.WARNING if facts.attention_of(holder) else None
