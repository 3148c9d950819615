"""``locks show``: everything that is known of one lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
from django_redis_lock.workers import REPLY_SECONDS, InHand, TaskLine, in_hand

EVENTS = 10
"""How many of the newest events are shown."""


@dataclass(frozen=True)
class _Known:
    """What one backend knows of a lock."""

    using: str
    holder: Holder | None
    line: list[Waiter]
    history: list[AuditEntry]
    tasks: InHand | None
    """What Celery's workers have in hand for it, ``None`` where there is no Celery."""

    @property
    def is_any(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.holder or self.line or self.history or self.its_tasks)

    @property
    def its_tasks(self) -> list[TaskLine]:
        """The tasks whose lock this backend has."""
        return self.tasks.of(self.using) if self.tasks else []


def run(options: dict[str, Any], terminal: Terminal) -> None:
    """Show the holder of a lock, its line, and what happened to it of late."""
    name = options["name"]
    tasks = in_hand(name)

    def ask(backend: BaseLockBackend) -> Iterator[_Known]:
        yield _Known(
            backend.alias,
            backend.holder(name),
            backend.waiting(name),
            backend.history(name, EVENTS),
            tasks,
        )

    backends = Backends(options["using"], terminal)
    found = [one for one in backends.each(ask) if one.is_any]
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
        "tasks": (
            [asdict(task) for task in one.its_tasks] if one.tasks and one.tasks.is_known else None
        ),
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
    if one.tasks is not None:
        terminal.say(heading("Celery tasks in hand for it"))
        _show_tasks(one.tasks, one.its_tasks, terminal)
    if one.history:
        terminal.say(heading("What happened, the latest first"))
        terminal.table(events.columns(name=False), one.history)


def _show_tasks(answer: InHand, tasks: list[TaskLine], terminal: Terminal) -> None:
    terminal.table(TASKS, tasks)
    if answer.problem:
        terminal.say(f"  Not known: {visible(answer.problem)}")
    elif not answer.is_known:
        terminal.say(f"  Not known: no worker answered within {duration(REPLY_SECONDS)}.")
    elif not tasks:
        terminal.say(f"  None with the workers that answered ({answer.workers}).")
    if answer.unclear:
        terminal.say(f"  Of {answer.unclear} more it is not known which lock they need.")


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

TASKS: list[Column[TaskLine]] = [
    Column("TASK", lambda task: visible(f"{task.task}[{task.id}]"), elastic=True),
    Column("STATE", lambda task: visible(task.state)),
    Column("BEHIND", lambda task: visible(task.behind or facts.UNKNOWN), elastic=True),
    Column("PLACE", lambda task: visible(task.place or facts.UNKNOWN)),
    Column("DUE (UTC)", lambda task: facts.due(task.eta)),
    Column("ATTEMPTS", lambda task: str(task.attempts), right=True),
    Column("WORKER", lambda task: visible(task.worker), spare=True),
]
"""The columns of tasks that workers have in hand."""
