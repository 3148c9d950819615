"""``locks history``: the forced releases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django_redis_lock.management.console import facts
from django_redis_lock.management.console.selection import Backends, nothing
from django_redis_lock.management.console.terminal import Column, Terminal
from django_redis_lock.protocol.audit import AuditEntry
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
        terminal.notice("The audit has no forced releases.")


def columns(*, name: bool, many: bool = False) -> list[Column[AuditEntry]]:
    of_name: list[Column[AuditEntry]] = [Column("NAME", lambda one: visible(one.name), cut=True)]
    backend: list[Column[AuditEntry]] = [Column("USING", lambda one: visible(one.using))]
    return [
        Column("AT (UTC)", lambda one: facts.clock(one.at)),
        Column("EVENT", lambda one: visible(one.event) or facts.UNKNOWN),
        *(of_name if name else []),
        *(backend if many else []),
        Column("HOLDER", facts.who, cut=True),
        Column("BY", lambda one: visible(one.by) or facts.UNKNOWN),
        Column("REASON", lambda one: visible(one.reason) or facts.UNKNOWN, cut=True),
        Column("FENCE", lambda one: str(one.fence or facts.UNKNOWN), right=True),
    ]
