"""What the backends say of the locks that are held, as objects that the admin can list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.attention import attention
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible, without_passwords

ERRORS = (LockError, InvalidLockBackend)
"""What asking a backend can raise."""
AT_ONCE = 8
"""How many backends are asked side by side."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Problem:
    """A backend that could not be asked, and why, ready to be shown."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        """Return what is to be said of an error."""
        return cls(visible(using), visible(without_passwords(str(error))))


def aliases() -> list[str]:
    """Return the aliases of LOCKS, or none where LOCKS is wrong."""
    try:
        return list(locks)
    except InvalidLockBackend:
        return []


def ask_each(
    questions: dict[str, Any], question: Callable[[BaseLockBackend, Any], Answer]
) -> tuple[dict[str, Answer], list[Problem]]:
    """Ask backends, each with what stands beside its alias; return answers, and who gave none.

    They are asked side by side, for those that are silent are waited for until they have timed out.
    """

    def ask(using: str) -> Answer | Problem:
        try:
            return question(locks[using], questions[using])
        except ERRORS as error:
            return Problem.of(using, error)

    def ask_aside(using: str) -> Answer | Problem:
        try:
            return ask(using)
        finally:
            connections.close_all()  # a receiver of a signal may have used the thread's

    if len(questions) > 1:
        with ThreadPoolExecutor(min(AT_ONCE, len(questions)), "held-locks") as pool:
            found = list(pool.map(ask_aside, questions))
    else:
        found = [ask(using) for using in questions]
    answers = {
        using: one
        for using, one in zip(questions, found, strict=True)
        if not isinstance(one, Problem)
    }
    return answers, [one for one in found if isinstance(one, Problem)]


def read_one(lock: HeldLock) -> HeldLock:
    """Ask for the holder of one lock. Raises ``LockError`` and ``InvalidLockBackend``."""
    backend = locks[lock.using]
    holder = backend.holder(lock.name)
    return next(rows([holder], backend)) if holder else lock


def read_rows(keys: Sequence[tuple[str, str]]) -> tuple[list[HeldLock], list[Problem]]:
    """Read the locks of aliases and names, in their order, without those that nobody holds."""
    names: dict[str, list[str]] = {}
    for using, name in keys:
        names.setdefault(using, []).append(name)
    answers, problems = ask_each(
        names, lambda backend, wanted: list(rows(backend.holders_of(wanted), backend))
    )
    found = {(row.using, row.name): row for answer in answers.values() for row in answer}
    return [found[key] for key in dict.fromkeys(keys) if key in found], problems


def rows(holders: Iterable[Holder], backend: BaseLockBackend) -> Iterator[HeldLock]:
    """Yield the objects of holders."""
    for holder in holders:
        row = HeldLock.of(holder.using, holder.name)
        row.holder = holder
        row.attention = attention(holder, backend)
        yield row
