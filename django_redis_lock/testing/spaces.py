"""The lock space of tests: where their locks are kept, and what they leave there."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import current_process
from django_redis_lock.testing.tools import abandon, finish_releases, lease_of, take

if TYPE_CHECKING:
    from unittest import TestCase
else:
    TestCase = object

logger = logging.getLogger("django_redis_lock")
Kind = Literal["memory", "settings"]
Holds = dict[tuple[str, str, str], Holder]
"""Held locks by alias, name and token id."""
RESTING = "resting"
"""The state of the lock of a Celery task that holds it on purpose for a while after its end."""
ROUNDS = 1000
"""How often locks are released that waiters get in the meantime."""


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
        raises ``AssertionError`` if there is any. A space that is not isolated is left as it is.
        """
        before = self._held()
        yield
        finish_releases(self._backends)
        left = {key: hold for key, hold in self._held().items() if key not in before}
        if self.isolated:
            self._empty(before)
        if fail_on_held:
            _check(left)

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
        """Remember a backend that was made in this space."""
        self._made[f"{backend.alias} {backend.params}"] = backend

    @property
    def _backends(self) -> list[BaseLockBackend]:
        """Those of settings that a test has had for a while are still among them."""
        return [*self._made.values()]

    def _held(self) -> Holds:
        found: Holds = {}
        for key, backend in [*self._made.items()]:
            try:
                found |= _held([backend], others=self.isolated)
            except LockUnavailable as error:  # as in a test of an outage
                logger.debug("The locks that a test may have left are not known: %s", error)
                if backend not in locks.made():  # those are not asked again
                    del self._made[key]
        return found

    def _empty(self, but: Holds) -> None:
        """Release what is held, all ``but`` some, and forget the rest if that is nothing."""
        for backend in self._backends:
            if isinstance(backend, LocMemLockBackend):
                _release(backend, but)
                if but:
                    backend.clear_history()
                else:
                    backend.clear()


class LockTestMixin(TestCase):
    """Gives the test methods of a class a lock space, and each of them an empty one.

    Name it before the ``TestCase``. Locks that ``setUpClass`` or ``setUpTestData`` acquires stay
    for all methods. ``setUp`` and ``setUpClass`` of a subclass have to call those of ``super()``.
    """

    lock_space: ClassVar[Kind] = "memory"
    """Where the locks are kept; see ``LockSpace``."""
    fail_on_held_locks: ClassVar[bool] = True
    """Whether a test fails that leaves a lock held."""
    _space: ClassVar[LockSpace]

    @classmethod
    def setUpClass(cls) -> None:
        """Begin the lock space."""
        cls._space = cls.enterClassContext(LockSpace(cls.lock_space))
        super().setUpClass()

    def setUp(self) -> None:
        """Have what this test leaves released at its end."""
        self.enterContext(self._space.one_test(fail_on_held=self.fail_on_held_locks))
        super().setUp()


def assert_no_locks_held(using: str | None = None) -> None:
    """Raise ``AssertionError`` if a lock is held, saying which, by which thread and since when.

    It checks all aliases that were used, or one. Outside of a ``LockSpace``, only locks that this
    process holds count. A task's lock that rests (``at_least_for``) never does. Releases that
    failed are sent first. Raises ``LockUnavailable``.
    """
    backends = locks.made() if using is None else [locks[using]]
    finish_releases(backends)
    space = locks.space
    _check(_held(backends, others=space is not None and space.isolated))


def _held(backends: Iterable[BaseLockBackend], *, others: bool) -> Holds:
    """Return the locks that are held; with ``others``, by other processes as well."""
    me = current_process()
    return {
        (backend.alias, holder.name, holder.token_id): holder
        for backend in backends
        for holder in backend.holders()
        if others or (holder.pid == os.getpid() and holder.host == me.host)
    }


def _check(left: Holds) -> None:
    """Raise ``AssertionError`` if there is a lock that should have been released."""
    owed = [holder for holder in left.values() if holder.metadata.get("state") != RESTING]
    if owed:
        raise AssertionError(_report(owed))


def _report(left: Iterable[Holder]) -> str:
    lines = list(map(_line, left))
    count = "1 lock is" if len(lines) == 1 else f"{len(lines)} locks are"
    return "\n".join([f"{count} still held:", *lines])


def _line(holder: Holder) -> str:
    line = f"  {holder.name!r} (LOCKS[{holder.using!r}])"
    if holder.held_for is not None and holder.acquired_at is not None:
        line += f", for {holder.held_for:.2f} s since {holder.acquired_at:%H:%M:%S} UTC"
    if holder.pid is not None:
        line += f", by thread {holder.thread!r} of process {holder.pid}"
    if holder.task_name:
        line += f", for task {holder.task_name}[{holder.task_id}]"
    return line


def _release(backend: BaseLockBackend, but: Holds) -> None:
    """Release the locks of a backend, and those that their waiters get, all ``but`` some."""
    left: list[Holder] = []
    for _ in range(ROUNDS):
        held = _held([backend], others=True)
        left = [holder for key, holder in held.items() if key not in but]
        if not left:
            return
        for holder in left:
            if lease := lease_of(holder.token_id):
                abandon(lease)
            take(backend, holder, "left by a test")
    logger.warning("Threads of a test go on to take locks. %s", _report(left))
