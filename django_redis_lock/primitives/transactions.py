"""Defers a release inside of a database transaction until the transaction has ended.

Before the commit the server is asked whether the lock is still held, so that nothing done without
it is committed. Django only reports commits, and forgets an ``on_commit`` callback when its
savepoint is rolled back. So the methods that end a transaction are wrapped, on each connection for
which a release waits.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.db import Error, connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.primitives.held import Held, confirm, finish
from django_redis_lock.support.django_private import is_of_test_case
from django_redis_lock.support.process import current_process

logger = logging.getLogger("django_redis_lock")
_WRAPPED_AS = "_django_redis_lock_wrapped"
_METHODS = (
    "commit",
    "rollback",
    "close",
    "set_autocommit",
    "savepoint_commit",
    "savepoint_rollback",
)


def defer(held: Sequence[Held]) -> bool:
    """Release locks when the open transactions of this thread end.

    Returns False if they have to be released now: there is no transaction, a loss was noticed, the
    app is not in ``INSTALLED_APPS``, or, with a warning, the handle has ``after_commit=False``.
    """
    open_connections = [
        connection
        for connection in connections.all(initialized_only=True)
        if _in_transaction(connection)
    ]
    if not open_connections or any(each._held().lost for each in held):
        return False
    if not (apps.ready and apps.is_installed("django_redis_lock")):
        return False
    if not held[0].after_commit:
        logger.warning(
            "Lock %s was released before the transaction on %s ended, so the next holder may not "
            "see what it wrote. Leave out after_commit=False.",
            ", ".join(repr(each.name) for each in held),
            ", ".join(repr(connection.alias) for connection in open_connections),
        )
        return False
    release = _Release(held)
    waiting.add(release)
    for connection in open_connections:
        wrapped: _Wrapped = connection.__dict__.get(_WRAPPED_AS) or _Wrapped(connection)
        wrapped.add(release)
    for each in held:
        each._deferred = True
    return True


def released_here(backend: BaseLockBackend, name: str) -> Held | None:
    """Return the lock if this thread has released it in a transaction that is still open."""
    for connection in connections.all(initialized_only=True):
        wrapped: _Wrapped | None = connection.__dict__.get(_WRAPPED_AS)
        for release in wrapped.releases if wrapped else ():
            for held in release.held():
                if held.name == name and held.backend is backend:
                    return held
    return None


class _Release:
    """A release that waits for the transactions of some connections."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.connections: set[_Wrapped] = set()
        self._holds = [(each, each._held()) for each in held]

    def held(self) -> list[Held]:
        """Return the locks still to be released; the others were acquired again."""
        mine = current_process()
        return [
            each for each, lease in self._holds if each._lease is lease and lease.process is mine
        ]


waiting: weakref.WeakSet[_Release] = weakref.WeakSet()
"""The releases that wait for a transaction to end."""


class _Wrapped:
    """Wraps the methods of a connection that end a transaction, for the life of the connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.releases: list[_Release] = []
        self._savepoint: str | None = None  # stands for the transaction in a TestCase
        self._original: Any = SimpleNamespace()
        for method in _METHODS:
            setattr(self._original, method, getattr(connection, method))
            setattr(connection, method, getattr(self, method))
        setattr(connection, _WRAPPED_AS, self)

    def add(self, release: _Release) -> None:
        self._savepoint = _savepoint_in_test(self._connection)
        release.connections.add(self)
        self.releases.append(release)

    def commit(self) -> None:
        self._confirm(self.rollback)
        self._original.commit()
        self._ended()

    def rollback(self) -> None:
        self._original.rollback()
        self._ended()

    def close(self) -> None:
        try:
            self._original.close()
        finally:
            # Django does not close SQLite's databases in memory.
            if self._connection.connection is None or self._connection.closed_in_transaction:
                self._ended()

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        self._original.set_autocommit(autocommit, *args, **kwargs)
        if autocommit:  # then no transaction is open
            self._ended()

    def savepoint_commit(self, sid: str | None) -> None:
        if sid is None or sid != self._savepoint or not self.releases:
            self._original.savepoint_commit(sid)
            return
        self._confirm(lambda: self.savepoint_rollback(sid))
        self._original.savepoint_commit(sid)
        self._ended()

    def savepoint_rollback(self, sid: str | None) -> None:
        self._original.savepoint_rollback(sid)
        if sid is not None and sid == self._savepoint:
            self._ended()

    def _confirm(self, roll_back: Callable[[], None]) -> None:
        """Roll back and raise ``LockLost`` or ``LockUnavailable`` unless all locks are held."""
        try:
            for release in self.releases:
                if held := release.held():
                    held[0].backend.run(confirm(held))
        except BaseException:
            try:
                roll_back()
            except Error:  # the connection is unusable
                self._connection.close()
            raise

    def _ended(self) -> None:
        while self.releases:
            release = self.releases.pop(0)
            release.connections.discard(self)
            held = release.held()
            if held and not release.connections:
                held[0].backend.run(finish(held))


def _in_transaction(connection: Any) -> bool:
    """Whether a transaction is open, other than that of a ``TestCase``."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if not connection.in_atomic_block:
        return not connection.autocommit
    blocks = connection.atomic_blocks
    in_test = bool(blocks) and is_of_test_case(blocks[0])
    return not in_test or _savepoint_in_test(connection) is not None


def _savepoint_in_test(connection: Any) -> str | None:
    """Return the savepoint of the outermost block inside of the blocks of a ``TestCase``.

    It stands for the transaction, as it does for ``durable``. A block without a savepoint leaves no
    trace when it ends, so no release waits for it.
    """
    blocks = connection.atomic_blocks
    if not blocks or not is_of_test_case(blocks[0]):
        return None
    outermost = next((i for i, block in enumerate(blocks) if not is_of_test_case(block)), None)
    # The last block has the last savepoint, whether or not the first one has any.
    return None if outermost is None else connection.savepoint_ids[outermost - len(blocks)]
