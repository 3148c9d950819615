"""The page of one lock."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import counting_up, duration, moment
from django_redis_lock.admin.reading import ERRORS, Problem, aliases, read_one
from django_redis_lock.admin.tickets import ticket_of
from django_redis_lock.admin.unwritable import unwritable
from django_redis_lock.admin.wording import (
    breakable,
    held_for_html,
    holder_html,
    latin,
    lease_left_html,
    name_html,
    origin_html,
    waiters_text,
    who,
)
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.audit import FORCE_RELEASED, FREED, AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.text import visible

MOST_WAITERS = 100
"""Waiters shown."""

Item = TypeVar("Item")


def detail(lock: HeldLock, recent_entries: int) -> dict[str, Any]:
    """Return the context of a lock's page; an unavailable backend is a problem in it."""
    facts = [(_("Name"), name_html(lock.name)), (_("Backend"), name_html(lock.using))]
    context: dict[str, Any] = {"row": lock, "facts": facts, "ticket": "", "problems": []}
    try:
        row = read_one(lock)
        backend = locks[lock.using]
    except ERRORS as error:
        return {**context, "problems": [Problem.of(lock.using, error)]}
    waiting, waiting_unknown = _asked(
        lambda: backend.waiting(lock.name, limit=MOST_WAITERS), lock.using
    )
    entries, entries_unknown = _asked(
        lambda: backend.history(lock.name, limit=recent_entries), lock.using
    )
    if row.holder:
        facts += _facts(row, row.holder)
        context["metadata"] = [
            (name_html(key), name_html(value)) for key, value in row.holder.metadata.items()
        ]
        context["command"] = release_command(row.holder)
        context["ticket"] = ticket_of(row)
        context["unwritable"] = unwritable([lock.using], ())
    in_queue = (row.holder and row.holder.waiters) or 0
    return {
        **context,
        "row": row,
        "waiting": [_waiter(waiter) for waiter in waiting],
        "waiting_more": max(0, in_queue - len(waiting)),
        "waiting_unknown": waiting_unknown,
        "entries": [_entry(entry) for entry in entries],
        "entries_unknown": entries_unknown,
    }


def _asked(ask: Callable[[], list[Item]], using: str) -> tuple[list[Item], str]:
    """Return what a backend answers, or why it does not."""
    try:
        return ask(), ""
    except ERRORS as error:
        return [], Problem.of(using, error).reason


def release_command(holder: Holder) -> list[str]:
    """Return the arguments of the command that releases this hold, quoted for a shell.

    Invisible characters are written as bash and zsh read them. A required reason is left empty.
    """
    options = ["--token-id", holder.token_id]
    if len(aliases()) > 1:
        options += ["--using", _quoted(holder.using)]
    if locks[holder.using].operators.reason_required:
        options += ["--reason", "''"]
    name = [_quoted(holder.name)]
    rest = [*options, "--", *name] if holder.name.startswith("-") else [*name, *options]
    return ["python", "manage.py", "locks", "release", *rest]


def _quoted(text: str) -> str:
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return (
        "$'"
        + "".join(
            character if character.isprintable() else f"\\U{ord(character):08x}"
            for character in escaped
        )
        + "'"
    )


def _facts(row: HeldLock, holder: Holder) -> list[tuple[str, Any]]:
    facts = [
        (_("Holder"), holder_html(holder)),
        (_("Held for"), held_for_html(holder, row.attention)),
        (_("Acquired at"), moment(holder.acquired_at)),
        (_("Lease left"), lease_left_html(holder, row.attention)),
        (_("Renewed for at most"), holder.max_hold and duration(holder.max_hold)),
        (_("Lease ends at"), moment(holder.expires_at)),
        (_("Waiters"), waiters_text(holder)),
        (_("Fence"), holder.fence and str(holder.fence)),
        (_("Token id"), latin(holder.token_id)),
        (_("Celery task"), holder.task_name and latin(holder.task_name)),
        (_("Task id"), holder.task_id and latin(holder.task_id)),
        (_("Host"), holder.host and latin(holder.host)),
        (_("Process id"), holder.pid and str(holder.pid)),
        (_("Thread"), holder.thread and latin(holder.thread)),
    ]
    return [(label, value) for label, value in facts if value is not None]


def _waiter(waiter: Waiter) -> dict[str, Any]:
    return {
        "who": origin_html(waiter) or "?",
        "since": moment(waiter.since),
        "waited": None if waiter.waited is None else counting_up(waiter.waited),
        "lease": None if waiter.lease is None else duration(waiter.lease),
    }


def _entry(entry: AuditEntry) -> dict[str, Any]:
    events = {
        FORCE_RELEASED: _("Released by force"),
        FREED: _("Freed by a Celery worker"),
    }
    return {
        "at": moment(entry.at),
        "event": events.get(entry.event, visible(entry.event)),
        "who": name_html(who(entry)),
        "by": breakable(entry.by),
        "reason": breakable(entry.reason),
    }
