"""Releases exactly the locks that an operator was shown; shared by the command and the admin."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.arguments import check_text
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")


class Shown(Protocol):
    """A hold as shown to an operator: a ``Holder`` or anything else with these attributes."""

    @property
    def using(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def token_id(self) -> str: ...


class Result(StrEnum):
    """The outcome of a release."""

    RELEASED = "released"
    CHANGED = "changed"
    """Another holder has it by now and keeps it."""
    GONE = "gone"
    """It was free already."""
    REFUSED = "refused"
    """The server refused, for instance because it is read-only: nothing was released."""
    UNAVAILABLE = "unavailable"
    """The server was unavailable, so the outcome is not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one lock."""

    shown: Shown
    result: Result
    loser: Holder | None = None
    """The holder that lost it, if it was released."""
    holder: Holder | None = None
    """Who holds it now: the waiter it was handed off to, or another new holder."""
    error: str = ""
    """Why it was refused or the outcome is not known; without passwords."""


def release_shown(shown: Iterable[Shown], *, by: str, reason: str = "") -> list[Outcome]:
    """Release each lock if the holder that was shown still has it; return an outcome for each.

    ``by`` says who releases and ``reason`` why, for the audit. A server that does not answer is
    asked for its first lock only.

    Raises ``ValueError`` or ``TypeError`` for an invalid reason, and for a missing one if the
    ``OPERATORS`` of an alias require it, before anything is released.
    """
    shown = list(shown)
    by, reason = check_text(by, "by"), check_text(reason, "reason")
    if not reason and (using := requires_reason(one.using for one in shown)):
        raise ValueError(
            f"A release of locks of LOCKS[{using!r}] needs a reason, because its "
            f"OPERATORS['REASON_REQUIRED'] is True; give one."
        )
    failed: dict[str, Outcome] = {}  # by alias; not asked again
    outcomes: list[Outcome] = []
    for one in shown:
        if one.using in failed:
            outcomes.append(replace(failed[one.using], shown=one))
            continue
        try:
            outcome = _release(one, by, reason)
        except (LockError, InvalidLockBackend, ValueError) as error:
            outcome = _failure(one, error)
            refused = isinstance(error, LockUnavailable) and error.refused
            if isinstance(error, InvalidLockBackend | LockUnavailable) and not refused:
                failed[one.using] = outcome  # the others would run into the same, and a timeout
        if loser := outcome.loser:
            logger.warning(
                "Lock %r of LOCKS[%r] was taken from %s by %s: %s",
                loser.name,
                loser.using,
                visible(str(loser)),
                visible(by) or "an unnamed operator",
                visible(reason) or "no reason given",
            )
        outcomes.append(outcome)
    return outcomes


def requires_reason(aliases: Iterable[str]) -> str | None:
    """Return the first alias whose ``OPERATORS`` require a reason, ``None`` without one."""
    for using in sorted(set(aliases)):
        with suppress(InvalidLockBackend):  # then its locks can't be released anyway
            if locks[using].operators.reason_required:
                return using
    return None


def _failure(one: Shown, error: Exception) -> Outcome:
    # A plain LockError is about the stored value: another program's data.
    undone = error.undone if isinstance(error, LockUnavailable) else isinstance(error, LockError)
    result = Result.REFUSED if undone else Result.UNAVAILABLE
    return Outcome(one, result, error=without_passwords(str(error)))


def _release(one: Shown, by: str, reason: str) -> Outcome:
    backend = locks[one.using]
    loser = backend.force_release(one.name, one.token_id, by=by, reason=reason)
    if loser is None:
        holder = backend.holder(one.name)
        return Outcome(one, Result.CHANGED if holder else Result.GONE, holder=holder)
    holder = None
    if loser.waiters != 0:
        with suppress(LockError):  # it is released all the same
            holder = backend.holder(one.name)
    return Outcome(one, Result.RELEASED, loser, holder)
