"""``locks limit``: how many permits semaphores have, as operators set it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management import output
from django_redis_lock.management.output import Backends, Column, Terminal, nothing, usage
from django_redis_lock.management.releasing import operator
from django_redis_lock.operators import change_limit, limit_of
from django_redis_lock.protocol.records import Limit
from django_redis_lock.support.text import visible

Row = tuple[Limit, int]
"""A limit, and how many permits are held."""


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """List the limits that are set, or set or clear one."""
    name, limit, clear = options["name"], options["limit"], options["clear"]
    if clear and (name is None or limit is not None):
        raise usage("--clear needs a name, and no limit.")
    backends = Backends(options["using"], terminal)
    if clear or limit is not None:
        _change(name, limit, operator(options), backends)
        return
    found = list(backends.each(lambda backend: _rows(backend, name)))
    backends.write("limits", found, _facts, LIMIT)
    backends.finish()
    if not found and name is not None:
        raise nothing(f"No limit is set for {visible(name)!r}.")
    if not found:
        terminal.notice("No limits are set.")


def _change(name: str, limit: int | None, by: str, backends: Backends) -> None:
    terminal = backends.terminal
    if backends.many:
        raise usage("LOCKS has several aliases: name one with --using.")
    if backends.alone:
        raise usage("Limits can't be changed for other processes here.")
    for backend in backends.all:
        with backends.noting(backend.alias):
            before = limit_of(backend, name)
            if before is None and limit is None:
                raise nothing(f"No limit was set for {visible(name)!r}.")
            if hint := output.hint_at_pattern(name, "locks list"):
                terminal.notice(f"The limit is that of the one name {visible(name)!r}.{hint}")
            change_limit(backend, name, limit, by=by)
            done = "cleared" if limit is None else str(limit)
            if terminal.as_json:
                backends.write("limits", _rows(backend, name), _facts, LIMIT)
            else:
                was = before.limit if before else "none"
                terminal.say(terminal.style.SUCCESS(f"{visible(name)}: limit {done}, before {was}"))
    backends.finish()


def _rows(backend: BaseLockBackend, name: str | None) -> list[Row]:
    limits = [one for one in backend.limits() if name in (None, one.name)]
    held = Counter(holder.name for holder in backend.holders_of(one.name for one in limits))
    return [(one, held[one.name]) for one in limits]


def _facts(row: Row) -> dict[str, Any]:
    return {**output.limit_facts(row[0]), "held": row[1]}


LIMIT: list[Column[Row]] = [
    Column("NAME", lambda row: visible(row[0].name)),
    Column("USING", lambda row: visible(row[0].using)),
    Column("LIMIT", lambda row: str(row[0].limit), right=True),
    Column("HELD", lambda row: str(row[1]), right=True),
    Column("BY", lambda row: visible(row[0].by)),
    Column("AT (UTC)", lambda row: output.clock(row[0].at)),
]
