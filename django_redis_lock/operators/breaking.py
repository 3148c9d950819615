"""Release exactly the locks that an operator was shown, and tell what became of each.

The command and the admin page share this. It needs neither ``django.contrib.admin`` nor
``django.contrib.auth``; where they are installed a release is written into the admin's log too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.operators.adminlog import log_releases
from django_redis_lock.protocol.audit import check_text
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")


class Shown(Protocol):
    """A hold that was shown: a ``Holder``, or anything else that says these three of it."""

    @property
    def using(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def token_id(self) -> str: ...


class Result(StrEnum):
    """What became of a lock that was to be released."""

    RELEASED = "released"
    CHANGED = "changed"
    """Another holder has it by now, and keeps it."""
    GONE = "gone"
    """Nobody held it any more."""
    REFUSED = "refused"
    """The server answered and refused, as one that is read-only does: nothing was released."""
    UNAVAILABLE = "unavailable"
    """Its server could not be asked, so it is not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one lock."""

    shown: Shown
    result: Result
    loser: Holder | None = None
    """Who lost it, where it was released."""
    holder: Holder | None = None
    """Who holds it now: the waiter that it was handed to, or whoever took it meanwhile."""
    error: str = ""
    """Why it was refused, or why it is not known what became of it; without passwords."""
    unlogged: str = ""
    """Why the release is not in the admin's log, where it should be."""


def release_shown(
    shown: Iterable[Shown], *, by: str, reason: str = "", user: Any = None
) -> list[Outcome]:
    """Release each lock if the holder that was shown still has it; return what became of it.

    ``by`` is who does it and ``reason`` why, for the audit; ``user`` is for the admin's log: an
    object of the user model, or the name of one. All locks are released before that database is
    asked, and it is waited for two seconds at the most; but in a transaction of yours the entries
    for an object are written on its connection. A server that does not answer is asked for its
    first lock alone.

    Raises ``ValueError`` or ``TypeError`` at once for a reason that can't be kept, and for none
    where the ``OPERATORS`` of an alias want one.
    """
    shown = list(shown)
    by, reason = check_text(by, "by"), check_text(reason, "reason")
    if not reason:
        _check_reason_is_optional({one.using for one in shown})
    return _release_each(shown, by, reason, user)


def _check_reason_is_optional(aliases: Iterable[str]) -> None:
    for using in sorted(aliases):
        try:
            operators = locks[using].operators
        except InvalidLockBackend:
            continue  # its locks are not released anyway
        if operators.reason_required:
            raise ValueError(
                f"A release of locks of LOCKS[{using!r}] needs a reason, for its "
                f"OPERATORS['REASON_REQUIRED'] is True; say why."
            )


def _release_each(shown: Iterable[Shown], by: str, reason: str, user: Any) -> list[Outcome]:
    failed: dict[str, Outcome] = {}  # by the alias that need not be asked again
    outcomes: list[Outcome] = []
    losers: list[Holder] = []
    try:
        for one in shown:
            if one.using in failed:
                outcomes.append(replace(failed[one.using], shown=one))
                continue
            try:
                outcome = _release(one, by, reason)
            except (LockError, InvalidLockBackend, ValueError) as error:
                outcome = _failure(one, error)
                if _is_of_all(error):
                    failed[one.using] = outcome
            if outcome.loser:
                _tell(outcome.loser, by, reason)
                losers.append(outcome.loser)
            outcomes.append(outcome)
    finally:  # after an interruption, too
        unlogged = log_releases(user, losers, reason)
    return [replace(one, unlogged=unlogged) if one.loser else one for one in outcomes]


def _failure(one: Shown, error: Exception) -> Outcome:
    # Only LockError itself is about what is stored: the server found another program's data.
    undone = error.undone if isinstance(error, LockUnavailable) else isinstance(error, LockError)
    result = Result.REFUSED if undone else Result.UNAVAILABLE
    return Outcome(one, result, error=without_passwords(str(error)))


def _is_of_all(error: Exception) -> bool:
    """Whether the other locks of an alias meet the same error, and only after a while."""
    return isinstance(error, InvalidLockBackend) or (
        isinstance(error, LockUnavailable) and not error.refused
    )


def _release(one: Shown, by: str, reason: str) -> Outcome:
    backend = locks[one.using]
    loser = backend.force_release(one.name, one.token_id, by=by, reason=reason)
    if loser is None:
        holder = backend.holder(one.name)
        return Outcome(one, Result.CHANGED if holder else Result.GONE, holder=holder)
    holder = None
    if loser.waiters != 0:
        try:
            holder = backend.holder(one.name)
        except LockError:  # it is released all the same
            logger.debug("Who was given lock %r can't be told", one.name)
    return Outcome(one, Result.RELEASED, loser, holder)


def _tell(loser: Holder, by: str, reason: str) -> None:
    logger.warning(
        "Lock %r of LOCKS[%r] was taken from %s by %s: %s",
        loser.name,
        loser.using,
        visible(str(loser)),
        visible(by) or "nobody in particular",
        visible(reason) or "no reason given",
    )
