"""Finds the locks that a command is about."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from django.core.management.base import CommandError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.operators import unwritable_because
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible, without_passwords

Answer = TypeVar("Answer")
ERROR, USAGE, NOT_KNOWN, NOTHING, INTERRUPTED = 1, 2, 2, 3, 130
"""Exit codes: an error; wrong usage; a server is unavailable; the holder changed, or nothing
matched; Ctrl-C."""

SORTS: dict[str, Callable[[Holder], Any]] = {
    "name": lambda holder: (holder.name, holder.using),
    "holder": str,
    "held": lambda holder: -(holder.held_for or 0.0),
    "lease": lambda holder: (holder.ttl is None, holder.ttl or 0.0),
    "waiters": lambda holder: -(holder.waiters or 0),
    "fence": lambda holder: -(holder.fence or 0),
}
"""Sort keys: the longest held, the lease that ends first and the most waiters come first."""


class Backends:
    """The backends that a command asks, and those that did not answer."""

    def __init__(self, using: str | None, notice: Callable[[str], object]) -> None:
        self._notice = notice
        self.all: list[BaseLockBackend] = []
        """The backends with valid settings."""
        self.silent: dict[str, str] = {}
        """Why a backend did not answer, by alias."""
        self._misconfigured: set[str] = set()
        self.aliases = aliases_of(using)
        self.many = len(self.aliases) > 1
        """Whether there is more than one, so that tables name the backend."""
        for alias in self.aliases:
            try:
                self.all.append(locks[alias])
            except InvalidLockBackend as error:
                if using:
                    raise CommandError(without_passwords(str(error))) from error
                self._note(alias, error)

    def each(self, ask: Callable[[BaseLockBackend], Iterable[Any]]) -> Iterator[Any]:
        """Yield what each backend answers; note one that is unavailable and go on."""
        for backend in self.all:
            try:
                yield from ask(backend)
            except (LockError, InvalidLockBackend, ValueError) as error:
                self._note(backend.alias, error)

    def attempt(self, backend: BaseLockBackend, read: Callable[[], Answer]) -> Answer | None:
        """Return a backend's answer, or ``None`` with a notice if it is unavailable."""
        try:
            return read()
        except (LockError, InvalidLockBackend, ValueError) as error:
            self._note(backend.alias, error)
            return None

    def _note(self, alias: str, error: Exception) -> None:
        if isinstance(error, ValueError):  # an invalid name
            raise CommandError(str(error), returncode=USAGE) from error
        if isinstance(error, InvalidLockBackend):
            self._misconfigured.add(alias)
        text = visible(without_passwords(str(error)))
        if self.silent.setdefault(alias, text) is text:
            self._notice(text)

    def not_known(self) -> dict[str, Any]:
        """Return for JSON which backends did not answer, and why."""
        return {"not_known": [{"using": one, "error": why} for one, why in self.silent.items()]}

    def warn_of_unwritable(self) -> None:
        """Warn of servers that answered but refuse writes. Sends an ``INFO`` to each."""
        for backend in self.all:
            if backend.alias not in self.silent and (why := unwritable_because(backend)):
                self._notice(f"The server of {visible(backend.alias)!r} {why}.")

    def finish(self) -> None:
        if self.silent:
            which = ", ".join(map(repr, self.silent))
            raise CommandError(
                f"The locks of {which} could not be read; see above.",
                returncode=ERROR if self.silent.keys() <= self._misconfigured else NOT_KNOWN,
            )


def aliases_of(using: str | None) -> list[str]:
    """Return the chosen alias, or all. Raises ``CommandError`` for an unknown one."""
    try:
        known = list(locks)
    except InvalidLockBackend as error:
        raise CommandError(without_passwords(str(error))) from error
    if using and using not in known:
        there = ", ".join(map(repr, known)) or "none"
        raise CommandError(
            f"There is no alias {using!r} in LOCKS; there are {there}.", returncode=USAGE
        )
    return [using] if using else known


def hint_at_pattern(name: str, way: str) -> str:
    """Return a hint for a name that looks like a pattern."""
    if not any(character in name for character in "*?["):
        return ""
    return f" For a pattern, use: {way} {visible(shlex.quote(name))}"


def nothing(message: str) -> CommandError:
    """Return the error for a selection that nothing matches."""
    return CommandError(message, returncode=NOTHING)
