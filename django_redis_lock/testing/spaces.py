"""The lock space of tests: where their locks are kept, apart from all others."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self, get_args

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.testing import leftovers
from django_redis_lock.testing.leases import settle

logger = logging.getLogger("django_redis_lock")
Kind = Literal["memory", "settings"]


class LockSpace:
    """Keeps the locks of all aliases in a place of their own during a block.

    - ``"memory"``: in the memory of this process; no server is needed.
    - ``"settings"``: where ``LOCKS`` says, with nothing changed.

    It goes on to apply when a test changes ``LOCKS``. Entries with the dummy backend stay as they
    are.
    """

    def __init__(self, kind: Kind = "memory") -> None:
        if kind not in get_args(Kind):
            raise ValueError(
                f"{kind!r} is no lock space; there are {', '.join(map(repr, get_args(Kind)))}."
            )
        self.kind = kind
        self.isolated = kind == "memory"
        """Whether no other process has locks here."""
        self._id = f"test-{secrets.token_hex(4)}"
        self._made: dict[str, BaseLockBackend] = {}
        self._outer: Any = None

    def __enter__(self) -> Self:
        self._outer, locks.space = locks.space, self
        locks.reset()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self.isolated:
                self._empty({})
        finally:
            locks.space = self._outer
            locks.reset()
            for backend in self._backends:
                backend.close()
            self._made.clear()

    @contextmanager
    def one_test(self, *, fail_on_held: bool = False) -> Iterator[None]:
        """Release what is acquired during the block and still held at its end.

        Locks that were held before, as by a fixture of the session, stay. With ``fail_on_held``
        raises ``AssertionError`` if there is any; a space that is not isolated is only looked at.
        """
        before = self._held()
        yield
        settle(self._backends)
        left = {key: hold for key, hold in self._held().items() if key not in before}
        if self.isolated:
            self._empty(before)
        if fail_on_held:
            leftovers.check(left)

    def move(
        self, kind: type[BaseLockBackend], params: dict[str, Any]
    ) -> tuple[type[BaseLockBackend], dict[str, Any]]:
        """Return the class and the settings of an entry of ``LOCKS`` in this space."""
        if not self.isolated or issubclass(kind, DummyLockBackend):
            return kind, params
        if not issubclass(kind, LocMemLockBackend):
            params = {key: value for key, value in params.items() if key != "OPTIONS"}
        return LocMemLockBackend, {
            **params,
            "LOCATION": f"{self._id} {params.get('LOCATION') or ''}",
        }

    def note(self, backend: BaseLockBackend) -> None:
        """Learn of a backend that was made in this space."""
        self._made[f"{backend.alias} {backend.params}"] = backend

    @property
    def _backends(self) -> list[BaseLockBackend]:
        """Those of settings that a test has had for a while are still among them."""
        return [*self._made.values()]

    def _held(self) -> leftovers.Holds:
        found: leftovers.Holds = {}
        for place, backend in [*self._made.items()]:
            try:
                found.update(leftovers.held([backend], others=self.isolated))
            except LockUnavailable as error:  # as in a test of an outage
                logger.debug("The locks that a test may have left are not known: %s", error)
                if backend not in locks.made():  # those are not asked again
                    del self._made[place]
        return found

    def _empty(self, kept: leftovers.Holds) -> None:
        """Release what is held, all but ``kept``, and forget the rest if that is nothing."""
        for backend in self._backends:
            if isinstance(backend, LocMemLockBackend):
                found = leftovers.held([backend], others=True)
                left = {key: hold for key, hold in found.items() if key not in kept}
                leftovers.release(left, [backend], kept)
                if kept:
                    backend.clear_history()
                else:
                    backend.clear()
