"""Releases the checked locks, and makes a message for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.utils.translation import gettext as _

from django_redis_lock.admin.adminlog import log_releases
from django_redis_lock.admin.durations import duration
from django_redis_lock.admin.reading import ERRORS, read_rows
from django_redis_lock.admin.tickets import Ticket, ticket_of
from django_redis_lock.admin.unwritable import unwritable
from django_redis_lock.admin.wording import (
    breakable,
    held_for_html,
    holder_html,
    lease_left_html,
    waiters_text,
    who,
)
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators.breaking import Outcome, Result, release_shown
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH
from django_redis_lock.support.text import visible

LEVELS = {
    Result.RELEASED: messages.SUCCESS,
    Result.CHANGED: messages.WARNING,
    Result.GONE: messages.WARNING,
    Result.REFUSED: messages.ERROR,
    Result.UNAVAILABLE: messages.ERROR,
}


def confirmation(tickets: Sequence[Ticket]) -> dict[str, Any]:
    """Return the context of the confirmation: who would lose what, and what has changed."""
    rows, problems = read_rows([(ticket.using, ticket.name) for ticket in tickets])
    found = {(row.using, row.name): row for row in rows}
    silent = {problem.using for problem in problems}
    held: list[dict[str, Any]] = []
    changed: list[str] = []
    for ticket in tickets:
        row = found.get((ticket.using, ticket.name))
        if row and row.holder and row.holder.token_id == ticket.token_id:
            held.append(_shown(row))
        elif visible(ticket.using) not in silent:
            changed.append(visible(ticket.name))
    return {
        "held": held,
        "changed": changed,
        "problems": problems,
        "unwritable": unwritable({ticket.using for ticket in tickets}, problems),
        "max_reason_length": MAX_TEXT_LENGTH,
        "reason_required": reason_required(tickets),
    }


def reason_required(tickets: Iterable[Ticket]) -> bool:
    """Whether any of the locks needs a reason to be released."""
    required = False
    for using in {ticket.using for ticket in tickets}:
        with suppress(*ERRORS):  # then its locks can't be released anyway
            required |= locks[using].operators.reason_required
    return required


def _shown(row: HeldLock) -> dict[str, Any]:
    assert row.holder
    return {
        "ticket": ticket_of(row),
        "name": breakable(row.name),
        "backend": breakable(row.using),
        "holder": holder_html(row.holder),
        "held_for": held_for_html(row.holder, row.attention),
        "lease_left": lease_left_html(row.holder, row.attention),
        "waiters": waiters_text(row.holder),
    }


def release(tickets: Sequence[Ticket], user: Any, reason: str) -> list[tuple[int, str]]:
    """Release the locks of tickets; return a (level, message) for each.

    Raises ``ValueError`` for an invalid reason, before anything is released.
    """
    outcomes = release_shown(tickets, by=user.get_username(), reason=reason)
    losers = [outcome.loser for outcome in outcomes if outcome.loser]
    unlogged = log_releases(user, losers, reason) if losers else ""
    return [(LEVELS[outcome.result], _told(outcome, unlogged)) for outcome in outcomes]


def _told(outcome: Outcome, unlogged: str) -> str:
    """Return the message; it starts with no name, because Django capitalizes it."""
    values = {"name": visible(outcome.shown.name), "error": visible(outcome.error)}
    match outcome.result:
        case Result.CHANGED:
            assert outcome.holder
            values["holder"] = who(outcome.holder)
            return _("Left “%(name)s” alone: it has changed hands, to %(holder)s.") % values
        case Result.GONE:
            return _("Nothing to release: nobody held “%(name)s” any more.") % values
        case Result.REFUSED:
            return _("The server refused, so “%(name)s” was not released: %(error)s") % values
        case Result.UNAVAILABLE:
            return _("It is not known what became of “%(name)s”: %(error)s") % values
    assert outcome.loser
    values["loser"] = who(outcome.loser)
    if outcome.loser.held_for is None:
        told = _("Released “%(name)s”, which %(loser)s held.") % values
    else:
        values["held_for"] = duration(outcome.loser.held_for)
        told = _("Released “%(name)s”, which %(loser)s had held for %(held_for)s.") % values
    if outcome.holder:
        told += " " + _("It went to %(holder)s.") % {"holder": who(outcome.holder)}
    if unlogged:
        reason = {"reason": visible(unlogged)}
        told += " " + _("It is not in the admin's log: %(reason)s") % reason
    return told
