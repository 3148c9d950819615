"""Which locks a command is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from django.core.management.base import CommandError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.console.terminal import Terminal
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.records import Holder
from django_redis_lock.text import visible, without_passwords

USAGE, NOTHING = 2, 3
"""Exit codes: wrong use; the holder changed, or nothing matched."""

SORTS: dict[str, Callable[[Holder], Any]] = {
    "name": lambda holder: (holder.name, holder.using),
    "holder": str,
    "held": lambda holder: -(holder.held_for or 0.0),
    "lease": lambda holder: (holder.ttl is None, holder.ttl or 0.0),
    "waiters": lambda holder: -holder.waiters,
    "fence": lambda holder: -(holder.fence or 0),
}
"""What can be sorted by; the longest held, the lease that ends first and the most waiters first."""


class Backends:
    """The backends that a command asks, and those that did not answer it."""

    def __init__(self, using: str | None, terminal: Terminal) -> None:
        try:
            aliases = [using] if using else list(locks)
            self.all = [locks[alias] for alias in aliases]
        except InvalidLockBackend as error:
            missing = using is not None and using not in _known()
            raise CommandError(
                without_passwords(str(error)), returncode=USAGE if missing else 1
            ) from error
        self._terminal = terminal
        self.silent: list[str] = []

    @property
    def many(self) -> bool:
        """Whether there is more than one, so that each lock's is to be named."""
        return len(self.all) > 1

    def each(self, ask: Callable[[BaseLockBackend], Iterable[Any]]) -> Iterator[Any]:
        """Yield what each backend answers; of one that can't be asked, say so and go on."""
        for backend in self.all:
            try:
                yield from ask(backend)
            except (LockError, InvalidLockBackend) as error:
                self.silent.append(backend.alias)
                self._terminal.notice(visible(str(error)))
            except ValueError as error:  # a name that no lock can have
                raise CommandError(str(error), returncode=USAGE) from error

    def holders(self, pattern: str) -> Iterator[Holder]:
        """Yield the holders of all locks whose name matches a pattern, as they are read."""
        return self.each(lambda backend: backend.holders(pattern))

    def holders_of(self, names: Iterable[str]) -> Iterator[Holder]:
        """Yield the holders of some locks; one that nobody holds is passed over."""

        def ask(backend: BaseLockBackend) -> Iterator[Holder]:
            return (holder for name in names if (holder := backend.holder(name)))

        return self.each(ask)

    def finish(self) -> None:
        """Raise ``CommandError`` where a backend did not answer."""
        if self.silent:
            which = ", ".join(map(repr, self.silent))
            raise CommandError(f"The locks of {which} are not known, see above.")


def _known() -> Iterable[str]:
    try:
        return list(locks)
    except InvalidLockBackend:
        return ()


def nothing(message: str) -> CommandError:
    """Return the error for a selection that nothing matches."""
    return CommandError(message, returncode=NOTHING)


def in_order(holders: Iterator[Holder], sort: str | None, *, reverse: bool) -> Iterator[Holder]:
    """Return the holders sorted; without ``sort`` they stay as they are read."""
    if sort is None and not reverse:
        return holders
    if sort is None:
        return reversed(list(holders))
    return iter(sorted(holders, key=SORTS[sort], reverse=reverse))


def peek(items: Iterator[Any]) -> Iterator[Any] | None:
    """Return the items, or ``None`` if there are none."""
    for first in items:
        return chain([first], items)
    return None
