"""``locks show``: everything that is known of one lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_redis_lock.audit import AuditEntry
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.console import events, facts
from django_redis_lock.console.durations import duration
from django_redis_lock.console.selection import Backends, nothing
from django_redis_lock.console.table import Column
from django_redis_lock.console.terminal import Terminal
from django_redis_lock.records import Holder, Waiter
from django_redis_lock.text import visible

EVENTS = 10
"""How many of the newest events are shown."""


@dataclass(frozen=True)
class _Known:
    """What one backend knows of a lock."""

    using: str
    holder: Holder | None
    line: list[Waiter]
    history: list[AuditEntry]


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the holder of a lock, its line, and what happened to it of late."""
    name = options["name"]

    def ask(backend: BaseLockBackend) -> Iterator[_Known]:
        yield _Known(
            backend.alias,
            backend.holder(name),
            backend.waiting(name),
            backend.history(name, EVENTS),
        )

    backends = Backends(options["using"], terminal)
    found = [one for one in backends.each(ask) if one.holder or one.line or one.history]
    if terminal.as_json:
        terminal.json_array(_facts(name, one) for one in found)
    else:
        for number, one in enumerate(found):
            if number:
                terminal.say()
            _show(name, one, terminal)
    backends.finish()
    if not any(one.holder or one.line for one in found):
        raise nothing(f"Nobody holds {visible(name)!r}.")


def _facts(name: str, one: _Known) -> dict[str, Any]:
    return {
        "name": name,
        "using": one.using,
        "holder": facts.holder_facts(one.holder) if one.holder else None,
        "waiting": [facts.waiter_facts(waiter) for waiter in one.line],
        "history": [facts.entry_facts(entry) for entry in one.history],
    }


def _show(name: str, one: _Known, terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    terminal.say(heading(f"{visible(name)} (backend {visible(one.using)})"))
    if one.holder:
        for label, value in _particulars(one.holder):
            terminal.say(f"  {label:<12}{value}")
    else:
        terminal.say("  Nobody holds it.")
    if one.line:
        terminal.say(heading("Waiting, first come first served"))
        terminal.table(LINE, list(enumerate(one.line, 1)))
    if one.history:
        terminal.say(heading("What happened, the latest first"))
        terminal.table(events.columns(name=False), one.history)


def _particulars(holder: Holder) -> Iterator[tuple[str, str]]:
    yield "holder", facts.who(holder)
    if holder.task_id:
        yield "task", f"{visible(holder.task_name or facts.UNKNOWN)} {visible(holder.task_id)}"
    if holder.host:
        yield "host", visible(holder.host)
        yield "process", str(holder.pid or facts.UNKNOWN)
        yield "thread", visible(holder.thread or facts.UNKNOWN)
    yield "acquired", _moment(holder.acquired_at)
    yield "held for", facts.held_for(holder)
    renewed = ", renewed while the holder lives" if holder.auto_renew else ""
    yield "lease left", facts.lease_left(holder) + renewed
    yield "lease ends", "never" if holder.ttl is None else _moment(holder.expires_at)
    yield "fence", str(holder.fence or facts.UNKNOWN)
    yield "token id", holder.token_id
    yield "waiters", str(holder.waiters)
    for key, value in holder.metadata.items():
        yield "metadata", f"{visible(key)} = {visible(value)}"


def _moment(moment: datetime | None) -> str:
    return f"{facts.clock(moment)} UTC" if moment else facts.UNKNOWN


def _brief(row: tuple[int, Waiter]) -> str:
    return facts.brief(row[1])


LINE: list[Column[tuple[int, Waiter]]] = [
    Column("", lambda row: str(row[0]), right=True),
    Column("WAITER", lambda row: facts.who(row[1]), elastic=True, brief=_brief),
    Column("SINCE (UTC)", lambda row: facts.clock(row[1].since)),
    Column("WAITED", lambda row: facts.waited(row[1]), right=True),
    Column("LEASE", lambda row: duration(row[1].lease) if row[1].lease else "-", right=True),
    Column("TOKEN ID", lambda row: row[1].token_id or facts.UNKNOWN, spare=True),
]
"""The columns of a line of waiters."""
