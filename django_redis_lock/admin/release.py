"""Releases the checked locks, and makes a message for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.db import router, transaction
from django.utils.translation import gettext as _

from django_redis_lock.admin.columns import COLUMNS
from django_redis_lock.admin.reading import ERRORS, read_rows, unwritable
from django_redis_lock.admin.tickets import Ticket, ticket_of
from django_redis_lock.admin.wording import duration, origin_html, who
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators.breaking import Outcome, Result, release_shown
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")

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
    found = {str(ticket_of(row)): row for row in rows}
    silent = {problem.using for problem in problems}
    return {
        "held": [_shown(found[str(one)]) for one in tickets if str(one) in found],
        "changed": [
            visible(one.name)
            for one in tickets
            if str(one) not in found and visible(one.using) not in silent
        ],
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
    holder = row.holder
    assert holder
    shown = {
        one.label: origin_html(holder) if name == "holder" else one.html(holder, row.attention)
        for name, one in COLUMNS.items()
        if name != "fence"
    }
    return {"name": visible(row.name), "ticket": ticket_of(row), "cells": list(shown.items())}


def release(
    tickets: Sequence[Ticket], by: str, reason: str, log: Callable[[HeldLock, str], Any]
) -> list[tuple[int, str]]:
    """Release the locks of tickets; return a (level, message) for each.

    ``log`` writes an entry of the admin's log. Raises ``ValueError`` for an invalid reason, before
    anything is released.
    """
    outcomes = release_shown(tickets, by=by, reason=reason)
    losers = [outcome.loser for outcome in outcomes if outcome.loser]
    unlogged = _log(losers, reason, log)
    return [(LEVELS[outcome.result], _told(outcome, unlogged)) for outcome in outcomes]


def _log(losers: Iterable[Holder], reason: str, log: Callable[[HeldLock, str], Any]) -> str:
    """Write an entry for each forced release; return what prevented it, or ``""``."""
    because = f" Reason: {visible(reason)}" if reason else ""
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            for loser in losers:
                lock = HeldLock.of(loser.using, loser.name)
                log(lock, f"Taken from {visible(str(loser))}.{because}")
    except Exception as error:
        logger.exception("Releases are not in the admin's log")
        return without_passwords(str(error))
    return ""


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
