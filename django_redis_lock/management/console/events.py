"""``locks history``: forced releases, freed locks and losses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django_redis_lock.management.console import facts
from django_redis_lock.management.console.selection import Backends, nothing
from django_redis_lock.management.console.table import Column, Paint
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.protocol.audit import FORCE_RELEASED, AuditEntry
from django_redis_lock.support.text import visible

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the audits, the latest entries first."""
    name, limit = options["name"], options["limit"]
    backends = Backends(options["using"], terminal.notice)
    found = list(backends.each(lambda backend: backend.history(name, limit)))
    if backends.many:
        found.sort(key=lambda entry: entry.at or _LONG_AGO, reverse=True)
    found = found[:limit]
    if terminal.as_json:
        terminal.json_object("events", map(facts.entry_facts, found), backends.not_known)
    else:
        terminal.table(columns(name=True, many=backends.many), found)
    backends.finish()
    if not found and name is not None:
        raise nothing(f"The audit has no events of {visible(name)!r}.")
    if not found:
        terminal.notice("The audit has no forced releases or freed locks.")


def columns(*, name: bool, many: bool = False) -> list[Column[AuditEntry]]:
    of_name: list[Column[AuditEntry]] = [
        Column("NAME", lambda one: visible(one.name), elastic=True)
    ]
    backend: list[Column[AuditEntry]] = [Column("USING", lambda one: visible(one.using))]
    return [
        Column("AT (UTC)", lambda one: facts.clock(one.at)),
        Column("EVENT", lambda one: visible(one.event) or facts.UNKNOWN, paint=_of_event),
        *(of_name if name else []),
        *(backend if many else []),
        Column("HOLDER", facts.who, elastic=True, brief=facts.brief),
        Column("BY", lambda one: visible(one.by) or facts.UNKNOWN),
        Column("REASON", lambda one: visible(one.reason) or facts.UNKNOWN, elastic=True),
        Column("FENCE", lambda one: str(one.fence or facts.UNKNOWN), right=True, spare=True),
    ]


def _of_event(entry: AuditEntry, style: Any) -> Paint | None:
    paints: dict[str, Paint] = {FORCE_RELEASED: style.WARNING}
    return paints.get(entry.event)
