"""Everything known of one lock."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import counting_up, duration, moment
from django_redis_lock.admin.reading import ERRORS, Problem, read_one
from django_redis_lock.admin.tickets import ticket_of
from django_redis_lock.admin.wording import (
    held_for_html,
    holder_html,
    lease_left_html,
    origin_html,
    who,
)
from django_redis_lock.audit import FORCE_RELEASED, AuditEntry
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.records import Holder, Waiter
from django_redis_lock.text import visible


def detail(lock: HeldLock, recent_entries: int) -> dict[str, Any]:
    """Return the context of a lock's page; what can't be asked for is told as a problem."""
    row, problems = lock, []
    waiting: list[Waiter] = []
    entries: list[AuditEntry] = []
    try:
        row = read_one(lock)
        waiting = locks[lock.using].waiting(lock.name)
        entries = locks[lock.using].history(lock.name, limit=recent_entries)
    except ERRORS as error:
        problems = [Problem.of(lock.using, error)]
    return {
        "row": row,
        "ticket": ticket_of(row) if row.holder else "",
        "facts": [(_("Name"), visible(lock.name)), (_("Backend"), visible(lock.using))]
        + (_facts(row, row.holder) if row.holder else []),
        "waiting": [_waiter(waiter) for waiter in waiting],
        "entries": [_entry(entry) for entry in entries],
        "problems": problems,
    }


def _facts(row: HeldLock, holder: Holder) -> list[tuple[str, Any]]:
    facts = [
        (_("Holder"), holder_html(holder)),
        (_("Held for"), held_for_html(holder, overdue=row.overdue)),
        (_("Acquired at"), moment(holder.acquired_at)),
        (_("Lease left"), lease_left_html(holder)),
        (_("Lease ends at"), moment(holder.expires_at)),
        (_("Waiters"), str(holder.waiters)),
        (_("Fence"), holder.fence and str(holder.fence)),
        (_("Token digest"), holder.token_id),
        (_("Celery task"), holder.task_name and visible(holder.task_name)),
        (_("Task id"), holder.task_id and visible(holder.task_id)),
        (_("Host"), holder.host and visible(holder.host)),
        (_("Process id"), holder.pid and str(holder.pid)),
        (_("Thread"), holder.thread and visible(holder.thread)),
    ]
    known = [(label, value) for label, value in facts if value is not None]
    return known + [(visible(key), visible(value)) for key, value in holder.metadata.items()]


def _waiter(waiter: Waiter) -> dict[str, Any]:
    return {
        "who": origin_html(waiter) or "?",
        "since": moment(waiter.since),
        "waited": None if waiter.waited is None else counting_up(waiter.waited),
        "lease": None if waiter.lease is None else duration(waiter.lease),
    }


def _entry(entry: AuditEntry) -> dict[str, Any]:
    forced = entry.event == FORCE_RELEASED
    return {
        "at": moment(entry.at),
        "event": _("Released by force") if forced else _("Found lost"),
        "who": who(entry),
        "by": visible(entry.by),
        "reason": visible(entry.reason),
    }
