"""Keeps a lock that is released inside of a database transaction until that has ended.

Before the commit the lease is checked, so that nothing is committed that was done without the lock.
Django tells of commits alone, and forgets what was to be done at one with a savepoint's rollback.
So the methods that end a transaction are wrapped, on each connection on which a release waits.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from django.db import Error, connections

from django_redis_lock.primitives.gate import Gate, Hold
from django_redis_lock.primitives.holding import Handle
from django_redis_lock.protocol.lease import Lease
from django_redis_lock.support.process import current_process

logger = logging.getLogger("django_redis_lock")
_WATCH = "_django_redis_lock_watch"


class TransactionGate(Gate):
    """Lets a release through when no transaction is open on any connection of this thread."""

    def __init__(self) -> None:
        self._waiting: weakref.WeakSet[_Release] = weakref.WeakSet()

    def puts_off(self, hold: Hold) -> bool:
        """Whether the release waits for transactions, which see to it when they end."""
        connections = [connection for connection in _connections() if _is_open(connection)]
        if not connections:
            return False
        if not hold.after_commit:
            logger.warning(
                "Lock %s was released before the transaction on %s ended: the next holder may not "
                "see what was written. Leave out after_commit=False.",
                ", ".join(repr(handle.name) for handle in hold.parts()),
                ", ".join(repr(connection.alias) for connection in connections),
            )
            return False
        release = _Release(hold)
        self._waiting.add(release)
        for connection in connections:
            _watch(connection).add(release)
        return True

    def waiting(self, backend: Any, name: str) -> Handle | None:
        """Return the handle of a lock that this thread released in a transaction still open."""
        if not self._waiting:
            return None
        for connection in _connections():
            watch: _Watch | None = connection.__dict__.get(_WATCH)
            for release in watch.releases if watch else ():
                for handle in release.parts():
                    if handle.name == name and handle.backend is backend:
                        return handle
        return None


class _Release:
    """A release that waits for the transactions of some connections."""

    def __init__(self, hold: Hold) -> None:
        self.watches: set[_Watch] = set()
        self._hold = hold
        self._leases: list[tuple[Handle, Lease]] = [
            (handle, handle._held()) for handle in hold.parts()
        ]

    def parts(self) -> list[Handle]:
        """Return the handles that still hold what was released; the others were taken back."""
        mine = current_process()
        return [
            handle
            for handle, lease in self._leases
            if handle._lease is lease and lease.process is mine
        ]

    def confirm(self) -> None:
        """Raise ``LockLost`` where a lock is held no longer, or ``LockUnavailable``."""
        self._hold.backend.run(self._hold.confirm(self.parts()))

    def ended(self, watch: _Watch) -> None:
        """Take in that a transaction has ended; give the locks up after the last one."""
        self.watches.discard(watch)
        if not self.watches:
            self._hold.backend.run(self._hold.finish(self.parts()))


class _Watch:
    """Wraps the methods of a connection that end transactions, once and for all."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.releases: list[_Release] = []
        self._savepoint: str | None = None  # that stands for the transaction in a TestCase
        self._commit = connection.commit
        self._rollback = connection.rollback
        self._close = connection.close
        self._set_autocommit = connection.set_autocommit
        self._savepoint_commit = connection.savepoint_commit
        self._savepoint_rollback = connection.savepoint_rollback
        connection.commit = self.commit
        connection.rollback = self.rollback
        connection.close = self.close
        connection.set_autocommit = self.set_autocommit
        connection.savepoint_commit = self.savepoint_commit
        connection.savepoint_rollback = self.savepoint_rollback

    def add(self, release: _Release) -> None:
        """Keep a release until the transaction has ended."""
        self._savepoint = _savepoint_in_test(self._connection)
        release.watches.add(self)
        self.releases.append(release)

    def commit(self) -> None:
        """Commit, unless a lock was lost; then roll back and raise ``LockLost``."""
        self._confirm(self.rollback)
        self._commit()
        self._ended()

    def rollback(self) -> None:
        """Roll back."""
        self._rollback()
        self._ended()

    def close(self) -> None:
        """Close the connection, with which its transaction ends."""
        try:
            self._close()
        finally:
            # SQLite's in memory stays open.
            if self._connection.connection is None or self._connection.closed_in_transaction:
                self._ended()

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        """Switch autocommit; where it is on no transaction is open, however it ended."""
        self._set_autocommit(autocommit, *args, **kwargs)
        if autocommit:
            self._ended()

    def savepoint_commit(self, sid: str | None) -> None:
        """Release a savepoint, as ``commit`` does where it stands for the transaction."""
        if sid is None or sid != self._savepoint or not self.releases:
            self._savepoint_commit(sid)
            return
        self._confirm(lambda: self.savepoint_rollback(sid))
        self._savepoint_commit(sid)
        self._ended()

    def savepoint_rollback(self, sid: str | None) -> None:
        """Roll back to a savepoint."""
        self._savepoint_rollback(sid)
        if sid is not None and sid == self._savepoint:
            self._ended()

    def _confirm(self, roll_back: Callable[[], None]) -> None:
        try:
            for release in self.releases:
                release.confirm()
        except BaseException:
            try:
                roll_back()
            except Error:  # the connection is of no use any more
                self._connection.close()
            raise

    def _ended(self) -> None:
        while self.releases:
            self.releases.pop(0).ended(self)


def _connections() -> Iterator[Any]:
    """Yield the database connections of this thread, without making any.

    As ``connections.all(initialized_only=True)`` does, in a third of the time.
    """
    made = connections._connections  # type: ignore[attr-defined]
    for alias in connections.settings:
        connection = getattr(made, alias, None)
        if connection is not None:
            yield connection


def _is_open(connection: Any) -> bool:
    """Whether a transaction is open that somebody will end; that around a test does not count."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if not connection.in_atomic_block:
        return not connection.autocommit
    blocks = connection.atomic_blocks
    if not blocks or not blocks[0]._from_testcase:
        return True
    return _savepoint_in_test(connection) is not None


def _savepoint_in_test(connection: Any) -> str | None:
    """Return the savepoint of the outermost block inside of those of a ``TestCase``.

    It stands for the transaction, as for ``durable``. A block without a savepoint, which the test's
    own blocks swallow without a trace, is not waited for.
    """
    blocks = connection.atomic_blocks
    if not blocks or not blocks[0]._from_testcase:
        return None
    outermost = next((i for i, block in enumerate(blocks) if not block._from_testcase), None)
    # The last block has the last savepoint, whether or not the first one has any.
    return None if outermost is None else connection.savepoint_ids[outermost - len(blocks)]


def _watch(connection: Any) -> _Watch:
    watch: _Watch | None = connection.__dict__.get(_WATCH)
    if watch is None:
        watch = connection.__dict__[_WATCH] = _Watch(connection)
    return watch
