"""What the pages of a lock, of a release and of the audit show, and the release itself."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.db import router, transaction
from django.utils.translation import gettext as _

from django_redis_lock.admin.changelist import COLUMNS
from django_redis_lock.admin.reading import aliases, ask_each, read_rows, unwritable
from django_redis_lock.admin.wording import (
    duration,
    held_for_html,
    latin,
    lease_bar,
    lease_left_html,
    moment,
    name_html,
    origin_html,
    waiters_text,
    who,
    wrappable,
)
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import Outcome, Result, judge, release_shown, requires_reason
from django_redis_lock.protocol.attention import is_renewed
from django_redis_lock.protocol.audit import FORCE_RELEASED, FREED, AuditEntry
from django_redis_lock.protocol.records import Holder, Waiter
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH, TOKEN_ID, check_name
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")

MOST_WAITERS = 100
"""Waiters shown."""
MOST_RELEASES = 100
"""Entries on the page of the audit."""
LEVELS = {
    Result.RELEASED: messages.SUCCESS,
    Result.CHANGED: messages.WARNING,
    Result.GONE: messages.WARNING,
}

Item = TypeVar("Item")


def detail(lock: HeldLock, recent_entries: int) -> dict[str, Any]:
    """Return the context of a lock's page; a backend that is not available is a problem in it."""
    context: dict[str, Any] = {"row": lock, "name": name_html(lock.name), "problems": []}
    context["backend"] = name_html(lock.using) if len(aliases()) > 1 else ""
    rows, problems = read_rows([(lock.using, lock.name)])
    if problems:
        return {**context, "problems": problems}
    row = rows[0] if rows else lock
    if row.holder:
        context |= _held(row, row.holder)
    waiting, waiting_unknown = _asked(row, lambda one: one.waiting(row.name, limit=MOST_WAITERS))
    entries, entries_unknown = _asked(row, lambda one: one.history(row.name, limit=recent_entries))
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


def audit() -> dict[str, Any]:
    """Return the context of the page of the audit, of all locks."""
    answers, problems = ask_each(aliases(), lambda one: one.history(limit=MOST_RELEASES))
    entries = [entry for answer in answers.values() for entry in answer]
    entries.sort(key=lambda one: one.at or datetime.min.replace(tzinfo=UTC), reverse=True)
    shown = [_entry(entry) for entry in entries[:MOST_RELEASES]]
    return {"entries": shown, "problems": problems, "several": len(aliases()) > 1}


def _held(row: HeldLock, holder: Holder) -> dict[str, Any]:
    """Return what is shown of a holder."""
    verdict = judge(holder)
    return {
        "hold": row.hold,
        "held_for": held_for_html(holder, row.attention),
        "lease_left": lease_left_html(holder, row.attention),
        "lease_bar": lease_bar(holder),
        "life": str(verdict.life),
        "why": visible(verdict.why),
        "waiters": waiters_text(holder),
        "owner": _known(
            (_("Celery task"), holder.task_name and latin(holder.task_name)),
            (_("Task id"), holder.task_id and latin(holder.task_id)),
            (_("Host"), holder.host and latin(holder.host)),
            (_("Process id"), holder.pid and str(holder.pid)),
            (_("Thread"), holder.thread and latin(holder.thread)),
        ),
        "task_links": task_links(holder),
        "metadata": [(name_html(key), name_html(text)) for key, text in holder.metadata.items()],
        "facts": _known(
            (_("Acquired at"), moment(holder.acquired_at)),
            (_("Last renewed at"), moment(renewed_at(holder))),
            (_("Lease ends at"), moment(holder.expires_at)),
            (_("Renewed for at most"), holder.max_hold and duration(holder.max_hold)),
            (_("Fence"), holder.fence and str(holder.fence)),
            (_("Token id"), latin(holder.token_id)),
        ),
        "command": release_command(holder),
        "unwritable": unwritable([row.using]),
    }


def _known(*facts: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [(label, value) for label, value in facts if value]


def task_links(holder: Holder) -> list[tuple[str, str]]:
    """Return the (title, URL) of the alias's ``TASK_LINKS`` for the holder's task."""
    if holder.task_id is None:
        return []
    links = locks[holder.using].operators.task_links
    task_id = quote(holder.task_id, safe="")
    return [(title, url.format(task_id=task_id)) for title, url in links.items()]


def renewed_at(holder: Holder) -> datetime | None:
    """Return when the lease was last renewed, as far as its end and its length tell."""
    lease = holder.lease
    if not is_renewed(holder) or lease is None or holder.ttl is None or holder.ttl > lease:
        return None  # not renewed, or its holder set another length
    if holder.held_for is None or holder.held_for <= lease / 3:
        return None
    assert holder.expires_at
    return holder.expires_at - timedelta(seconds=lease)


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
    shown = (one if one.isprintable() else f"\\U{ord(one):08x}" for one in escaped)
    return f"$'{''.join(shown)}'"


def _asked(
    lock: HeldLock, question: Callable[[BaseLockBackend], list[Item]]
) -> tuple[list[Item], str]:
    """Return what a lock's backend answers, or why it does not."""
    answers, problems = ask_each([lock.using], question)
    return answers.get(lock.using, []), problems[0].reason if problems else ""


def _waiter(waiter: Waiter) -> dict[str, Any]:
    return {
        "who": origin_html(waiter),
        "since": moment(waiter.since),
        "waited": None if waiter.waited is None else duration(waiter.waited),
        "lease": None if waiter.lease is None else duration(waiter.lease),
    }


def _entry(entry: AuditEntry) -> dict[str, Any]:
    events = {FORCE_RELEASED: _("Released by force"), FREED: _("Freed by a Celery worker")}
    return {
        "key": HeldLock.of(entry.using, entry.name).pk,
        "name": name_html(entry.name),
        "backend": name_html(entry.using),
        "at": moment(entry.at),
        "event": events.get(entry.event, visible(entry.event)),
        "who": origin_html(entry),
        "by": wrappable(entry.by),
        "reason": wrappable(entry.reason),
    }


def read_shown(texts: Iterable[str]) -> list[HeldLock]:
    """Return the locks of a form with their holders, without duplicates.

    Raises ``BadRequest`` for a text that no page sent.
    """
    holds = []
    for text in dict.fromkeys(texts):
        token_id, _colon, key = text.partition(":")
        lock = lock_of(unquote(key))
        if lock is None or not TOKEN_ID.fullmatch(token_id):
            raise BadRequest("A ticked lock is none that this page has shown.")
        lock.token_id = token_id
        holds.append(lock)
    return holds


def lock_of(key: str) -> HeldLock | None:
    """Return the object with a key, held or not, ``None`` if LOCKS can have no such lock."""
    lock = HeldLock.from_key(key)
    if lock is None or lock.using not in aliases():
        return None
    try:
        check_name(lock.name)
    except ValueError:
        return None
    return lock


def confirmation(holds: Sequence[HeldLock]) -> dict[str, Any]:
    """Return the context of the confirmation: who would lose what, and what has changed."""
    rows, problems = read_rows([(hold.using, hold.name) for hold in holds])
    found = {row.hold: row for row in rows}
    silent = {problem.using for problem in problems}
    return {
        "held": [_shown(found[one.hold]) for one in holds if one.hold in found],
        "changed": [
            visible(one.name)
            for one in holds
            if one.hold not in found and visible(one.using) not in silent
        ],
        "problems": problems,
        "unwritable": unwritable({hold.using for hold in holds}, problems),
        "max_reason_length": MAX_TEXT_LENGTH,
        "reason_required": requires_reason(one.using for one in holds) is not None,
    }


def _shown(row: HeldLock) -> dict[str, Any]:
    holder = row.holder
    assert holder
    cells = [
        (one.label, origin_html(holder) if name == "holder" else one.html(holder, row.attention))
        for name, one in COLUMNS.items()
        if name != "fence"
    ]
    return {"name": visible(row.name), "hold": row.hold, "cells": cells}


def release(
    holds: Sequence[HeldLock], by: str, reason: str, log: Callable[[HeldLock, str], Any]
) -> list[tuple[int, str]]:
    """Release the locks of holds; return a (level, message) for each.

    ``log`` writes an entry of the admin's log. Raises ``ValueError`` for an invalid reason, before
    anything is released.
    """
    outcomes = release_shown(holds, by=by, reason=reason)
    because, unlogged = f" Reason: {visible(reason)}" if reason else "", ""
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            for loser in [outcome.loser for outcome in outcomes if outcome.loser]:
                lock = HeldLock.of(loser.using, loser.name)
                log(lock, f"Taken from {visible(str(loser))}.{because}")
    except Exception as error:
        logger.exception("Releases are not in the admin's log")
        unlogged = without_passwords(str(error))
    return [(LEVELS.get(one.result, messages.ERROR), _message(one, unlogged)) for one in outcomes]


def _message(outcome: Outcome, unlogged: str) -> str:
    """Return the message; it starts with no name, because Django capitalizes it."""
    values = {"name": visible(outcome.shown.name), "error": visible(outcome.error)}
    match outcome.result:
        case Result.CHANGED:
            assert outcome.holder
            values["holder"] = who(outcome.holder)
            return _("Left “%(name)s” alone: it has changed hands, to %(holder)s.") % values
        case Result.GONE:
            return _("Nothing to release: “%(name)s” was free already.") % values
        case Result.REFUSED:
            return _("The server refused, so “%(name)s” was not released: %(error)s") % values
        case Result.UNAVAILABLE:
            return _("It is not known what became of “%(name)s”: %(error)s") % values
    assert outcome.loser
    values["loser"] = who(outcome.loser)
    if outcome.loser.held_for is None:
        text = _("Released “%(name)s”, which %(loser)s held.") % values
    else:
        values["held_for"] = duration(outcome.loser.held_for)
        text = _("Released “%(name)s”, which %(loser)s had held for %(held_for)s.") % values
    if outcome.holder:
        text += " " + _("It went to %(holder)s.") % {"holder": who(outcome.holder)}
    if unlogged:
        reason = {"reason": visible(unlogged)}
        text += " " + _("It is not in the admin's log: %(reason)s") % reason
    return text
