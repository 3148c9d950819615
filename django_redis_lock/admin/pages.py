"""What the pages of the admin show: a lock with its holders, waiters and audit, and outcomes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any
from urllib import parse

from django.core.exceptions import BadRequest
from django.utils.translation import gettext as _

from django_redis_lock import operators
from django_redis_lock.admin import wording
from django_redis_lock.admin.changelist import COLUMNS, Problem, ask_each, unwritable
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import LockState, Outcome, Result, aliases
from django_redis_lock.protocol.records import FORCE_RELEASED, FREED, AuditEntry, Holder, Waiter
from django_redis_lock.support.arguments import MOST_AT_ONCE, TOKEN_ID, check_name
from django_redis_lock.support.text import escape_unprintable

MOST_SHOWN = 100
"""Holders and waiters on the page of a lock, and entries on that of the audit."""


def detail(lock: HeldLock, recent_entries: int) -> dict[str, Any]:
    """Return the context of a lock's page; a backend that is not available is a problem in it."""
    read = partial(operators.read_lock, name=lock.name, waiters=MOST_SHOWN, entries=recent_entries)
    found, problems = ask_each([lock.using], read)
    return {
        "name": wording.name_html(lock.name),
        "backend": wording.name_html(lock.using) if len(aliases()) > 1 else "",
        "problems": problems,
        **(_known_of(found[lock.using]) if found else {}),
    }


def _known_of(state: LockState) -> dict[str, Any]:
    holders, waiting, backlogs = state.holders, state.queue or [], state.backlogs
    in_queue = state.first[0].waiters if state.first else 0
    turns = backlogs.turns if backlogs and any(each.turn for each in backlogs.turns) else []
    unknown = {part: Problem.of(state.using, why).reason for part, why in state.unknown.items()}
    return {
        **{f"{part}_unknown": why for part, why in unknown.items()},
        **(_held(holders[0]) if len(holders) == 1 else {}),
        "holders": [_hold(one) for one in holders[:MOST_SHOWN]] if len(holders) > 1 else [],
        "holders_more": max(0, len(holders) - MOST_SHOWN),
        "waiters": wording.waiters_text(state.first[0]) if holders or in_queue != 0 else "",
        "parked": sum(one.parked for one in state.first),
        "sharing": wording.sharing_of(holders[0]) if holders else "",
        "unwritable": unwritable([state.using]),
        **_limited(state),
        "waiting": [_waiter(waiter) for waiter in waiting],
        "waiting_to_share": any(waiter.shared for waiter in waiting),
        "waiting_more": max(0, (in_queue or 0) - len(waiting)),
        "backlogs": backlogs,
        "turns": [(wording.name_html(one.turn or "-"), one.parked) for one in turns],
        "turns_more": backlogs.number - len(backlogs.turns) if backlogs else 0,
        "entries": [*map(entry_facts, state.history or ())],
    }


def audit(lock: HeldLock | None = None) -> dict[str, Any]:
    """Return the context of the audit of one lock, or of all."""
    asked = [lock.using] if lock else aliases() or [DEFAULT_ALIAS]  # whose error says what to write
    name = lock.name if lock else None
    found, problems = ask_each(asked, lambda one: one.history(name, MOST_SHOWN))
    entries = operators.newest_first(chain(*found.values()))
    unknown = {"history_unknown": problems[0].reason} if lock and problems else {}
    return {
        "entries": [*map(entry_facts, entries[:MOST_SHOWN])],
        "problems": [] if lock else problems,
        **unknown,
        "unwritable": unwritable(found, problems),
        "several": lock is None and len(aliases()) > 1,
    }


def _limited(state: LockState) -> dict[str, Any]:
    """Return what an operator has set, except for a lock that all use as another kind."""
    limit, seen = state.limit, [*state.holders, *(state.queue or ())]
    may_be_semaphore = not seen or any(one.limit is not None for one in seen)
    if not may_be_semaphore or not locks[state.using].can_share:
        return {}
    return {
        "limit": limit and limit.limit,
        "limit_by": limit and wording.wrappable(limit.by),
        "limit_at": limit and wording.moment(limit.at),
        "can_limit": True,
        "most_permits": MOST_AT_ONCE,
    }


def _hold(holder: Holder) -> dict[str, Any]:
    verdict = operators.judge(holder)
    known = (*holder.marks.items(), *holder.metadata.items())
    return {
        "hold": HeldLock.of_holder(holder).hold,
        "who": wording.origin_html(holder),
        "held_for": wording.held_for_html(holder),
        "lease_left": wording.lease_left_html(holder),
        "life": str(verdict.life),
        "why": escape_unprintable(verdict.why),
        "fence": holder.fence and str(holder.fence),
        "token_id": wording.latin(holder.token_id),
        "task_links": task_links(holder),
        "metadata": [(wording.name_html(key), wording.name_html(text)) for key, text in known],
    }


def _held(holder: Holder) -> dict[str, Any]:
    ttl, full = holder.ttl, holder.lease or (holder.ttl or 0.0) + (holder.held_for or 0.0)
    return {
        **_hold(holder),
        "lease": full,
        "lease_now": None if ttl is None else min(ttl, full),
        "owner": _known(
            (_("Celery task"), holder.task_name and wording.latin(holder.task_name)),
            (_("Task id"), holder.task_id and wording.latin(holder.task_id)),
            (_("Host"), holder.host and wording.latin(holder.host)),
            (_("Process id"), holder.pid and str(holder.pid)),
            (_("Thread"), holder.thread and wording.latin(holder.thread)),
        ),
        "facts": _known(
            (_("Acquired at"), wording.moment(holder.acquired_at)),
            (_("Lease ends at"), wording.moment(holder.expires_at)),
            (_("Renewed for at most"), holder.max_hold and wording.duration_html(holder.max_hold)),
            (_("Fence"), holder.fence and str(holder.fence)),
            (_("Token id"), wording.latin(holder.token_id)),
        ),
        "command": release_command(holder),
    }


def _known(*facts: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [(label, value) for label, value in facts if value]


def task_links(holder: Holder) -> list[tuple[str, str]]:
    """Return the (title, URL) of the alias's ``TASK_LINKS`` for the holder's task."""
    if holder.task_id is None:
        return []
    links = locks[holder.using].operators.task_links
    task_id = parse.quote(holder.task_id, safe="")
    return [(title, url.format(task_id=task_id)) for title, url in links.items()]


def release_command(holder: Holder) -> list[str]:
    """Return the arguments, for a shell, of the command that releases this hold."""
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


def _waiter(waiter: Waiter) -> dict[str, Any]:
    return {
        "who": wording.origin_html(waiter),
        "parked": waiter.parked,
        "sharing": wording.sharing_of(waiter),
        "since": wording.moment(waiter.since),
        "waited": wording.duration_html(waiter.waited),
        "lease": wording.duration_html(waiter.lease),
    }


def entry_facts(entry: AuditEntry) -> dict[str, Any]:
    events = {FORCE_RELEASED: _("Released by force"), FREED: _("Freed by a Celery worker")}
    return {
        "key": HeldLock.of(entry.using, entry.name).pk,
        "name": wording.name_html(entry.name),
        "backend": wording.name_html(entry.using),
        "at": wording.moment(entry.at),
        "event": events.get(entry.event, escape_unprintable(entry.event)),
        "who": wording.origin_html(entry),
        "by": wording.wrappable(entry.by),
        "reason": wording.wrappable(entry.reason),
    }


def read_shown(texts: Iterable[str]) -> list[HeldLock]:
    """Return the locks and holders of a form. Raises ``BadRequest`` for what no page sent."""
    holds = []
    for text in dict.fromkeys(texts):
        token_id, _colon, key = text.partition(":")
        lock = lock_of(parse.unquote(key))
        if lock is None or not TOKEN_ID.fullmatch(token_id):
            raise BadRequest("A selected lock is not one that this page has shown.")
        lock.token_id = token_id
        holds.append(lock)
    return holds


def lock_of(key: str) -> HeldLock | None:
    """Return the object with a key, held or not, ``None`` if LOCKS can have no such lock."""
    lock = HeldLock.from_key(key)
    if lock is not None and lock.using in aliases():
        with suppress(ValueError):
            check_name(lock.name)
            return lock
    return None


def row_of(holder: Holder) -> dict[str, Any]:
    """Return the row of a hold on the page that asks for confirmation."""
    whole = {"lock": wording.lock_html, "holder": wording.origin_html}
    shown = [(name, one) for name, one in COLUMNS.items() if name != "fence"]
    cells = [(one.label, whole.get(name, one.html)(holder)) for name, one in shown]
    return {"hold": HeldLock.of_holder(holder).hold, "cells": cells}


def message(outcome: Outcome) -> str:
    """Return the message; it starts with no name, because Django capitalizes it."""
    loser, holder = outcome.loser, outcome.holder
    released = _("Released “%(name)s”, which %(loser)s held.")
    if loser and loser.held_for is not None:
        released = _("Released “%(name)s”, which %(loser)s had held for %(held_for)s.")
    ended = _("Not released: the hold of “%(name)s” that was shown has already ended.")
    text = {
        Result.RELEASED: released,
        Result.CHANGED: _("Not released: “%(name)s” is now held by %(holder)s."),
        Result.GONE: ended if holder else _("Not released: “%(name)s” was already free."),
        Result.REFUSED: _("The server refused to release “%(name)s”: %(error)s"),
        Result.UNAVAILABLE: _("It is not known whether “%(name)s” was released: %(error)s"),
    }[outcome.result]
    if loser and holder:
        text += " " + _("It is now held by %(holder)s.")
    return text % {
        "name": escape_unprintable(outcome.shown.name),
        "error": escape_unprintable(outcome.error),
        "loser": loser and wording.who(loser),
        "held_for": loser and wording.duration(loser.held_for or 0.0),
        "holder": holder and wording.who(holder),
    }
