"""``locks show``: one lock with its holder, waiters, tasks and history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management.console import events, facts
from django_redis_lock.management.console.durations import duration, length
from django_redis_lock.management.console.selection import Backends, hint_at_pattern, nothing
from django_redis_lock.management.console.table import Column
from django_redis_lock.management.console.terminal import Terminal
from django_redis_lock.operators.liveness import Verdict, judge
from django_redis_lock.operators.workers import REPLY_SECONDS, InHand, TaskLine, in_hand
from django_redis_lock.protocol.audit import AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.text import visible

EVENTS = 10
"""Newest events shown."""
WAITERS = 100
"""Waiters shown, from the head of the queue."""


@dataclass(frozen=True)
class _Known:
    """What one backend knows of a lock."""

    using: str
    holder: Holder | None
    queue: list[Waiter] | None
    """The waiters; ``None`` if unknown."""
    history: list[AuditEntry] | None
    """The newest events; ``None`` if unknown."""
    tasks: InHand | None
    """The tasks of Celery's workers for it; ``None`` without Celery."""

    @property
    def is_any(self) -> bool:
        return bool(self.holder or self.queue or self.history or self.its_tasks)

    @property
    def waiters(self) -> int | None:
        """The number of waiters; ``None`` if unknown."""
        counted = [self.holder.waiters] if self.holder else []
        if self.queue is not None:
            counted.append(len(self.queue))
        return max((number for number in counted if number is not None), default=None)

    @property
    def its_tasks(self) -> list[TaskLine]:
        return self.tasks.of(self.using) if self.tasks else []


def run(options: dict[str, Any], terminal: Terminal) -> None:
    name = options["name"]
    tasks = in_hand(name)

    backends = Backends(options["using"], terminal.notice)
    asked = [_ask(name, backend, backends, tasks) for backend in backends.all]
    found = [one for one in asked if one and one.is_any]
    held = [one.holder for one in found if one.holder]
    silence = tasks.silence if tasks else ""
    judged = judge(held, terminal.notice, REPLY_SECONDS, silence)
    verdicts = {holder.using: verdict for holder, verdict in judged}
    if terminal.as_json:
        items = (_facts(name, one, verdicts.get(one.using)) for one in found)
        terminal.json_object("locks", items, backends.not_known)
    else:
        for number, one in enumerate(found):
            if number:
                terminal.say()
            _show(name, one, verdicts.get(one.using), terminal)
    backends.finish()
    if not any(one.holder or one.queue for one in found):
        raise nothing(f"Lock {visible(name)!r} is not held.{hint_at_pattern(name, 'locks list')}")


def _ask(
    name: str, backend: BaseLockBackend, backends: Backends, tasks: InHand | None
) -> _Known | None:
    """Ask one backend; each question may fail by itself."""
    holder = backends.attempt(backend, lambda: [backend.holder(name)], None)
    if holder is None:  # unavailable; don't wait for it again
        return None
    limit = WAITERS if holder[0] else None  # a holder knows the number of waiters
    queue = backends.attempt(backend, lambda: backend.waiting(name, limit), None)
    history = backends.attempt(backend, lambda: backend.history(name, EVENTS), None)
    return _Known(backend.alias, holder[0], queue, history, tasks)


def _facts(name: str, one: _Known, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "name": name,
        "using": one.using,
        "holder": facts.holder_facts(one.holder) if one.holder else None,
        "life": verdict.life if verdict else None,
        "life_because": verdict.why if verdict else None,
        "waiters": one.waiters,
        "waiting": (
            None
            if one.queue is None
            else [facts.waiter_facts(each) for each in one.queue[:WAITERS]]
        ),
        "tasks": (
            [asdict(task) for task in one.its_tasks] if one.tasks and one.tasks.is_known else None
        ),
        "history": (
            None if one.history is None else [facts.entry_facts(entry) for entry in one.history]
        ),
    }


def _show(name: str, one: _Known, verdict: Verdict | None, terminal: Terminal) -> None:
    heading = terminal.style.MIGRATE_HEADING
    terminal.say(heading(f"{visible(name)} (backend {visible(one.using)})"))
    if one.holder and verdict:
        for label, value in _particulars(one.holder, verdict):
            terminal.say(f"  {label:<12}{value}")
    else:
        terminal.say("  Not held.")
    if one.queue:
        terminal.say(heading("Queue, in order of arrival"))
        terminal.table(QUEUE, list(enumerate(one.queue[:WAITERS], 1)))
        if one.waiters and one.waiters > WAITERS:
            terminal.say(f"... and {one.waiters - WAITERS} more, {one.waiters} in all")
    if one.tasks is not None:
        terminal.say(heading("Celery tasks of this lock"))
        _show_tasks(one.tasks, one.its_tasks, terminal)
    if one.history != []:
        terminal.say(heading("History, newest first"))
    if one.history is None:
        terminal.say("  Not known.")
    else:
        terminal.table(events.columns(name=False), one.history)


def _show_tasks(answer: InHand, tasks: list[TaskLine], terminal: Terminal) -> None:
    terminal.table(TASKS, tasks)
    if answer.problem:
        terminal.say(f"  Not known: {visible(answer.problem)}")
    elif not answer.is_known:
        terminal.say(f"  Not known: no worker answered within {length(REPLY_SECONDS)}.")
    elif not tasks:
        terminal.say(f"  None on the workers that answered ({answer.workers}).")
    if answer.unclear:
        terminal.say(f"  Further tasks, whose lock is not known: {answer.unclear}.")


def _particulars(holder: Holder, verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "holder", facts.who(holder)
    if holder.task_id:
        yield "task name", visible(holder.task_name or facts.UNKNOWN)
        yield "task id", visible(holder.task_id)
    if holder.host:
        yield "host", visible(holder.host)
        yield "pid", str(holder.pid or facts.UNKNOWN)
        yield "thread", visible(holder.thread or facts.UNKNOWN)
    yield "life", f"{verdict.life}: {verdict.why}"
    yield "acquired at", _moment(holder.acquired_at)
    yield "held for", facts.held_for(holder)
    if facts.attention_of(holder):
        yield "attention", facts.mark(holder)
    yield "lease left", facts.lease_left(holder) + _renewed(holder)
    yield "expires at", "never" if holder.ttl is None else _moment(holder.expires_at)
    yield "fence", str(holder.fence or facts.UNKNOWN)
    yield "token id", holder.token_id
    yield "waiters", "not known" if holder.waiters is None else str(holder.waiters)
    for key, value in holder.metadata.items():
        yield "metadata", f"{visible(key)} = {visible(value)}"


def _renewed(holder: Holder) -> str:
    if not holder.auto_renew:
        return ""
    if holder.max_hold is None:
        return ", renewed while the holder lives"
    return f", renewed until held for {length(holder.max_hold)}"


def _moment(moment: datetime | None) -> str:
    return f"{facts.clock(moment)} UTC" if moment else facts.UNKNOWN


def _brief(row: tuple[int, Waiter]) -> str:
    return facts.brief(row[1])


QUEUE: list[Column[tuple[int, Waiter]]] = [
    Column("", lambda row: str(row[0]), right=True),
    Column("WAITER", lambda row: facts.who(row[1]), elastic=True, brief=_brief),
    Column("SINCE (UTC)", lambda row: facts.clock(row[1].since)),
    Column("WAITED", lambda row: facts.waited(row[1]), right=True),
    Column("LEASE", lambda row: duration(row[1].lease) if row[1].lease else "-", right=True),
    Column("TOKEN ID", lambda row: row[1].token_id or facts.UNKNOWN, spare=True),
]
"""The columns of a queue."""

TASKS: list[Column[TaskLine]] = [
    Column("TASK", lambda task: visible(f"{task.task}[{task.id}]"), elastic=True),
    Column("STATE", lambda task: visible(task.state)),
    Column("BEHIND", lambda task: visible(task.behind or facts.UNKNOWN), elastic=True),
    Column("PLACE", lambda task: visible(task.place or facts.UNKNOWN)),
    Column("ETA (UTC)", lambda task: facts.due(task.eta)),
    Column("ATTEMPTS", lambda task: str(task.attempts), right=True),
    Column("WORKER", lambda task: visible(task.worker), spare=True),
]
"""The columns of the workers' tasks."""
