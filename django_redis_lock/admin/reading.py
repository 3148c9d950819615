"""Reads held locks from the backends, as objects that the admin can list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TypeVar

from django.db import connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.models import HeldLock
from django_redis_lock.operators import attention_of, unwritable_because
from django_redis_lock.support.text import visible, without_passwords

ERRORS = (LockError, InvalidLockBackend)
"""What a backend can raise."""
AT_ONCE = 8
"""Backends that are asked at the same time."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Problem:
    """A backend that is not available, or refuses writes, and why; safe to show."""

    using: str
    reason: str

    @classmethod
    def of(cls, using: str, error: Exception) -> Problem:
        text = str(error).removeprefix(f"LOCKS[{using!r}] is not available: ")  # the page says that
        return cls(visible(using), visible(without_passwords(text)))


@dataclass
class Reading:
    """What was read for a list of locks."""

    rows: list[HeldLock] = field(default_factory=list)
    total: int = 0
    """How many locks are held on the backends that answered."""
    is_whole: bool = True
    """Whether all of them were read; otherwise only names were searched."""
    unread: int = 0
    """How many locks whose names match were not read."""
    problems: list[Problem] = field(default_factory=list)
    unwritable: list[Problem] = field(default_factory=list)


def aliases() -> list[str]:
    try:
        return list(locks)
    except InvalidLockBackend:
        return []


def ask_each(
    usings: Iterable[str], question: Callable[[BaseLockBackend], Answer]
) -> tuple[dict[str, Answer], list[Problem]]:
    """Ask backends by their aliases; return the answers and the problems.

    They are asked in parallel, because unavailable ones take until their timeout.
    """

    def ask(using: str) -> Answer | Problem:
        try:
            return question(locks[using])
        except ERRORS as error:
            return Problem.of(using, error)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread

    with ThreadPoolExecutor(AT_ONCE, "held-locks") as pool:
        found = dict(zip(usings, pool.map(ask, usings), strict=True))
    answers = {using: one for using, one in found.items() if not isinstance(one, Problem)}
    return answers, [one for one in found.values() if isinstance(one, Problem)]


def read_list(most: int, words: Sequence[str], using: str | None) -> Reading:
    """Read the held locks of every backend if there are at most ``most``.

    Of more locks, read at most ``most`` whose names contain each word, of one alias if ``using`` is
    given, those with the latest lease end. A backend that is not available hides no other.
    """
    try:
        asked = list(locks)
    except InvalidLockBackend as error:
        return Reading(problems=[Problem.of("LOCKS", error)])
    indexes, problems = ask_each(asked, lambda one: list(one.read_index().latest()))
    is_whole = sum(map(len, indexes.values())) <= most
    found = [
        (end, alias, name)
        for alias, index in indexes.items()
        for name, end in index
        if is_whole or (using in (None, alias) and all(word in name.casefold() for word in words))
    ]
    rows, silent = read_rows([(alias, name) for _, alias, name in nlargest(most, found)])
    gone = {problem.using for problem in silent}
    total = sum(len(index) for alias, index in indexes.items() if visible(alias) not in gone)
    problems += silent
    return Reading(
        rows,
        len(rows) if is_whole else total,
        is_whole,
        max(0, len(found) - most),
        problems,
        unwritable(asked, problems),
    )


def read_rows(keys: Sequence[tuple[str, str]]) -> tuple[list[HeldLock], list[Problem]]:
    """Read the locks with these (alias, name), in order, without those that are free."""
    names: dict[str, list[str]] = {}
    for using, name in keys:
        names.setdefault(using, []).append(name)

    def read(backend: BaseLockBackend) -> Iterator[HeldLock]:
        for holder in backend.holders_of(names[backend.alias]):
            row = HeldLock.of(holder.using, holder.name, holder.token_id)
            row.holder = holder
            row.attention = attention_of(holder)
            yield row

    answers, problems = ask_each(names, lambda backend: list(read(backend)))
    found = {(row.using, row.name): row for answer in answers.values() for row in answer}
    return [found[key] for key in dict.fromkeys(keys) if key in found], problems


def unwritable(among: Iterable[str], silent: Iterable[Problem] = ()) -> list[Problem]:
    """Return the aliases whose server refuses writes; those with problems are not asked."""
    skipped = {problem.using for problem in silent}
    asked = [using for using in sorted(set(among)) if visible(using) not in skipped]
    reasons, _ = ask_each(asked, unwritable_because)
    return [Problem(visible(using), visible(str(why))) for using, why in reasons.items() if why]
