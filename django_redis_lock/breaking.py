"""Release exactly the locks that an operator was shown, and tell what became of each.

The command and the admin page share this. It needs neither ``django.contrib.admin`` nor
``django.contrib.auth``; where they are installed a release is written into the admin's log too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from django_redis_lock.adminlog import log_release
from django_redis_lock.audit import check_text
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.records import Holder
from django_redis_lock.text import visible, without_passwords

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
    """Why it is not known what became of it; without passwords."""


def release_shown(
    shown: Iterable[Shown], *, by: str, reason: str = "", user: Any = None
) -> Iterator[Outcome]:
    """Release each lock if the holder that was shown still has it; yield what became of it.

    They are released one by one as the iterator goes on, so exhaust it. ``by`` is who does it and
    ``reason`` why, for the audit; ``user`` is the user model's object for the admin's log, if
    there is one. A server that does not answer is asked for its first lock alone.

    Raises ``ValueError`` or ``TypeError`` at once for a reason that can't be kept.
    """
    return _release_each(shown, check_text(by, "by"), check_text(reason, "reason"), user)


def _release_each(shown: Iterable[Shown], by: str, reason: str, user: Any) -> Iterator[Outcome]:
    silent: dict[str, str] = {}
    for one in shown:
        if one.using in silent:
            yield Outcome(one, Result.UNAVAILABLE, error=silent[one.using])
            continue
        try:
            outcome = _release(one, by, reason)
        except (LockError, InvalidLockBackend, ValueError) as error:
            message = without_passwords(str(error))
            if isinstance(error, LockUnavailable | InvalidLockBackend):
                silent[one.using] = message
            outcome = Outcome(one, Result.UNAVAILABLE, error=message)
        if outcome.loser:
            _tell(outcome.loser, by, reason, user)
        yield outcome


def _release(one: Shown, by: str, reason: str) -> Outcome:
    backend = locks[one.using]
    loser = backend.force_release(one.name, one.token_id, by=by, reason=reason)
    if loser is None:
        holder = backend.holder(one.name)
        return Outcome(one, Result.CHANGED if holder else Result.GONE, holder=holder)
    holder = None
    if loser.waiters:
        try:
            holder = backend.holder(one.name)
        except LockError:  # it is released all the same
            logger.debug("Who was given lock %r can't be told", one.name)
    return Outcome(one, Result.RELEASED, loser, holder)


def _tell(loser: Holder, by: str, reason: str, user: Any) -> None:
    logger.warning(
        "Lock %r of LOCKS[%r] was taken from %s by %s: %s",
        loser.name,
        loser.using,
        visible(str(loser)),
        visible(by) or "nobody in particular",
        visible(reason) or "no reason given",
    )
    if user is not None:
        log_release(user, loser, reason)
