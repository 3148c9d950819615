"""From the boxes that were ticked to the locks that are released, and what to say of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.utils.translation import gettext as _

from django_redis_lock.admin.durations import duration
from django_redis_lock.admin.reading import ERRORS, Problem, read_one
from django_redis_lock.admin.tickets import read_tickets, ticket_of
from django_redis_lock.admin.wording import held_for_html, holder_html, lease_left_html, who
from django_redis_lock.audit import MAX_TEXT_LENGTH
from django_redis_lock.breaking import Outcome, Result, release_shown
from django_redis_lock.models import HeldLock
from django_redis_lock.text import visible

LEVELS = {
    Result.RELEASED: messages.SUCCESS,
    Result.CHANGED: messages.WARNING,
    Result.GONE: messages.WARNING,
    Result.UNAVAILABLE: messages.ERROR,
}


def confirmation(tickets: list[str]) -> dict[str, Any]:
    """Return the context of the page that asks: who would lose what, and what has changed."""
    held: list[dict[str, Any]] = []
    changed: list[str] = []
    problems: dict[str, Problem] = {}
    for ticket in read_tickets(tickets):
        if ticket.using in problems:
            continue
        try:
            row = read_one(HeldLock.of(ticket.using, ticket.name))
        except ERRORS as error:
            problems[ticket.using] = Problem.of(ticket.using, error)
            continue
        if row.holder and row.holder.token_id == ticket.token_id:
            held.append(_shown(row))
        else:
            changed.append(visible(ticket.name))
    return {
        "held": held,
        "changed": changed,
        "problems": list(problems.values()),
        "max_reason_length": MAX_TEXT_LENGTH,
    }


def _shown(row: HeldLock) -> dict[str, Any]:
    assert row.holder
    return {
        "ticket": ticket_of(row),
        "name": visible(row.name),
        "backend": visible(row.using),
        "holder": holder_html(row.holder),
        "held_for": held_for_html(row.holder, overdue=row.overdue),
        "lease_left": lease_left_html(row.holder),
        "waiters": row.holder.waiters,
    }


def release(tickets: list[str], user: Any, reason: str) -> Iterator[tuple[int, str]]:
    """Release the locks of tickets; yield a message, with its level, on each.

    Exhaust it. Raises ``ValueError`` at once for a reason that is too long.
    """
    shown = read_tickets(tickets)
    outcomes = release_shown(shown, by=user.get_username(), reason=reason, user=user)
    return ((LEVELS[outcome.result], _told(outcome)) for outcome in outcomes)


def _told(outcome: Outcome) -> str:
    """Return what became of one lock; it begins with no name, for Django capitalizes it."""
    values = {"name": visible(outcome.shown.name), "error": visible(outcome.error)}
    match outcome.result:
        case Result.CHANGED:
            assert outcome.holder
            values["holder"] = who(outcome.holder)
            return _("Left “%(name)s” alone: it has changed hands, to %(holder)s.") % values
        case Result.GONE:
            return _("Nothing to release: nobody held “%(name)s” any more.") % values
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
    return told
