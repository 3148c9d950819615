"""Reads held locks from the backends, as objects that the admin can list."""

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
"""What a backend can raise."""
AT_ONCE = 8
"""Backends that are asked at the same time."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Problem:
    """A backend that could not be asked, and why, safe to show."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        text = str(error).removeprefix(f"LOCKS[{using!r}] can't be asked: ")  # the page says that
        return cls(visible(using), visible(without_passwords(text)))


def aliases() -> list[str]:
    """Return the aliases of LOCKS, none if LOCKS is invalid."""
    try:
        return list(locks)
    except InvalidLockBackend:
        return []


def ask_each(
    questions: dict[str, Any], question: Callable[[BaseLockBackend, Any], Answer]
) -> tuple[dict[str, Answer], list[Problem]]:
    """Ask backends, each with the value of its alias; return the answers and the problems.

    They are asked in parallel, because unavailable ones take until their timeout.
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
            connections.close_all()  # a signal receiver may have opened one in this thread

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
    """Read the holder of one lock. Raises ``LockError`` and ``InvalidLockBackend``."""
    backend = locks[lock.using]
    holder = backend.holder(lock.name)
    return next(rows([holder], backend)) if holder else lock


def read_rows(keys: Sequence[tuple[str, str]]) -> tuple[list[HeldLock], list[Problem]]:
    """Read the locks with these (alias, name), in order, without those that are free."""
    names: dict[str, list[str]] = {}
    for using, name in keys:
        names.setdefault(using, []).append(name)
    answers, problems = ask_each(
        names, lambda backend, wanted: list(rows(backend.holders_of(wanted), backend))
    )
    found = {(row.using, row.name): row for answer in answers.values() for row in answer}
    return [found[key] for key in dict.fromkeys(keys) if key in found], problems


def rows(holders: Iterable[Holder], backend: BaseLockBackend) -> Iterator[HeldLock]:
    for holder in holders:
        row = HeldLock.of(holder.using, holder.name)
        row.holder = holder
        row.attention = attention(holder, backend.operators.threshold(holder.name))
        yield row
