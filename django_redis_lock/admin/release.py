"""Releases exactly the holds that a page showed, and makes a message for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.db import router, transaction
from django.utils.translation import gettext as _

from django_redis_lock.admin.changelist import COLUMNS
from django_redis_lock.admin.reading import aliases, read_rows, unwritable
from django_redis_lock.admin.wording import duration, origin_html, who
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import Outcome, Result, release_shown, requires_reason
from django_redis_lock.support.arguments import MAX_TEXT_LENGTH, TOKEN_ID, check_name
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")

LEVELS = {
    Result.RELEASED: messages.SUCCESS,
    Result.CHANGED: messages.WARNING,
    Result.GONE: messages.WARNING,
}


@dataclass(frozen=True, slots=True)
class Ticket:
    """A lock and the holder that was shown with it."""

    using: str
    name: str
    token_id: str

    def __str__(self) -> str:
        key: str = HeldLock.of(self.using, self.name).pk
        return f"{self.token_id}:{quote(key)}"


def ticket_of(row: HeldLock) -> Ticket:
    assert row.holder
    return Ticket(row.using, row.name, row.holder.token_id)


def read_tickets(texts: Iterable[str]) -> list[Ticket]:
    """Return the tickets of a form, without duplicates.

    Raises ``BadRequest`` for a text that no page sent.
    """
    tickets = []
    for text in dict.fromkeys(texts):
        token_id, _colon, key = text.partition(":")
        lock = lock_of(unquote(key))
        if lock is None or not TOKEN_ID.fullmatch(token_id):
            raise BadRequest("A ticked lock is none that this page has shown.")
        tickets.append(Ticket(lock.using, lock.name, token_id))
    return tickets


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
        "reason_required": requires_reason(one.using for one in tickets) is not None,
    }


def _shown(row: HeldLock) -> dict[str, Any]:
    holder = row.holder
    assert holder
    cells = [
        (one.label, origin_html(holder) if name == "holder" else one.html(holder, row.attention))
        for name, one in COLUMNS.items()
        if name != "fence"
    ]
    return {"name": visible(row.name), "ticket": ticket_of(row), "cells": cells}


def release(
    tickets: Sequence[Ticket], by: str, reason: str, log: Callable[[HeldLock, str], Any]
) -> list[tuple[int, str]]:
    """Release the locks of tickets; return a (level, message) for each.

    ``log`` writes an entry of the admin's log. Raises ``ValueError`` for an invalid reason, before
    anything is released.
    """
    outcomes = release_shown(tickets, by=by, reason=reason)
    because, unlogged = f" Reason: {visible(reason)}" if reason else "", ""
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            for loser in [outcome.loser for outcome in outcomes if outcome.loser]:
                lock = HeldLock.of(loser.using, loser.name)
                log(lock, f"Taken from {visible(str(loser))}.{because}")
    except Exception as error:
        logger.exception("Releases are not in the admin's log")
        unlogged = without_passwords(str(error))
    return [(LEVELS.get(one.result, messages.ERROR), _told(one, unlogged)) for one in outcomes]


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
