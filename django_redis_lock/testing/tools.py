"""What tests do to locks and see of them, and the lock space where their locks are kept."""

from __future__ import annotations

import logging
import os
import secrets
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args
from unittest.mock import patch

from django_redis_lock import signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.renewal import LONGEST_CALL, REASON_EXPIRED, renewer
from django_redis_lock.exceptions import LockError, LockNotAcquired, LockUnavailable
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.primitives.held import register
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol import calls, drivers, locking
from django_redis_lock.protocol.calls import FORCED_RELEASE, Call
from django_redis_lock.protocol.records import FORCE_RELEASED, Holder, audit_fields
from django_redis_lock.support.arguments import DEFAULT, Sharing, check_choice
from django_redis_lock.support.process import current_process

if TYPE_CHECKING:
    from unittest import TestCase
else:
    TestCase = object

with suppress(ImportError):  # a lease must not end or stand still with a frozen clock
    import freezegun

    freezegun.configure(extend_ignore_list=["django_redis_lock"])

logger = logging.getLogger("django_redis_lock")
Kind = Literal["memory", "settings"]
Holds = dict[tuple[str, str, str], Holder]  # by alias, name and token id
_lines: dict[str, str] = {}  # where a lock was acquired, by token id; known in a ``LockSpace``


@contextmanager
def held_by_another(
    name: str,
    *,
    timeout: float | None = None,
    using: str = DEFAULT_ALIAS,
    shared: bool = False,
    limit: int | None = None,
) -> Iterator[None]:
    """Have another holder hold a lock during the block.

    It excludes the test's own thread as well, and locks that are ``reentrant`` there. Its lease is
    renewed until the end of the block, or with ``timeout`` fixed, in seconds. Waiters get the lock
    at the end. With ``shared`` the holder shares it, with ``limit`` it has one permit, and without
    both it holds the lock exclusively. Raises ``LockNotAcquired`` if the lock is already held.
    """
    backend = _backend(using)
    lease_s, by = DEFAULT if timeout is None else timeout, {"held": "by held_by_another()"}
    sharing = Sharing(shared or limit is not None, limit)
    handle = Lock(lambda: backend, name, lease_s, metadata=by, sharing=sharing)
    request = handle.make_request(backend)
    lease = backend.run(locking.acquire(None, request, None))
    if lease is None:
        why = backend.run(backend.operations.why_refused(name, limit)) or "it is already held"
        raise LockNotAcquired(f"Could not acquire lock {name!r} in the test: {why}.", name=name)
    lease.lose(REASON_EXPIRED)  # no holder in this process is notified of a loss
    if request.auto_renew:
        renewer.add(lease, backend, lease)
    try:
        yield
    finally:
        renewer.discard(lease)
        release = calls.Release(name, lease.token, shared=lease.permit, patient=False)
        renewer.withdraw(release, backend, lease.longest, at_once=True)
        renewer.at_exit()
        backend.freed(name)


def expire_now(name: str, *, fence: int | None = None, using: str = DEFAULT_ALIAS) -> None:
    """End the lease of a held lock, as if its time had passed without a renewal.

    The lock is then free, or a waiter has it. ``held.lost`` of a holder in this process is true; if
    its lease was renewed, the signal ``lock_lost`` has been sent. Of several that share the lock,
    ``fence`` (``held.fence``) selects one. Raises ``LockError`` if the lock is not held.
    """
    _end(using, name, fence, "expire")


def lose(name: str, *, fence: int | None = None, using: str = DEFAULT_ALIAS) -> None:
    """Take a held lock from its holder, as an operator does on another machine.

    As with ``expire_now()``, but a holder with a fixed lease notices only when it asks or
    releases, as always.
    """
    _end(using, name, fence, "be lost")


def _end(using: str, name: str, fence: int | None, how: str) -> None:
    """End one hold of a lock; if this process renews its lease, it finds out at once."""
    backend = _backend(using)
    found = [one for one in backend.holders_of([name]) if fence in (None, one.fence)]
    if not found:
        by = "" if fence is None else f" with fence {fence}"
        raise LockError(f"Lock {name!r} is not held{by}, so it can't {how}.", name=name)
    if len(found) > 1:
        text = f"Lock {name!r} has {len(found)} holders: pass the fence of one."
        raise LockError(text, name=name)
    lease = register.of_hold(found[0].token_id)
    entry = None if lease is None else renewer.entries.pop(lease.token, None)
    take(backend, found[0], "" if how == "expire" else "lose()")
    if lease is not None and how == "expire":
        lease.shorten(0.0)
    if lease is not None and entry is not None:
        entry.due = monotonic() + 60.0  # this thread does it
        renewer.entries[lease.token] = entry
        entry.server.renew([entry], monotonic() + LONGEST_CALL)


def take(backend: BaseLockBackend, holder: Holder, reason: str = "") -> None:
    """Take a lock from its holder without a signal; the audit has it if there is a reason."""
    entry = audit_fields(FORCE_RELEASED, holder, "", reason) if reason else {}
    most = backend.operators.audit_entries
    backend.run(calls.ask(calls.ForceRelease(holder.name, holder.token_id, entry, most)))


def _backend(using: str) -> BaseLockBackend:
    backend = locks[using]
    if isinstance(backend, DummyLockBackend):
        raise LockError(
            f"LOCKS[{using!r}] is a DummyLockBackend, which excludes no caller and stores nothing. "
            f"Use a LocMemLockBackend in this test."
        )
    return backend


@contextmanager
def unavailable(using: str | None = None) -> Iterator[None]:
    """Make all operations in this process, or on one alias, raise ``LockUnavailable`` in the block.

    Nothing is sent or retried, so errors are raised at once, with every backend.
    Renewals fail, too; a lock whose lease ends is lost. At the end, failed releases are sent.
    """
    fail = partial(_fail, using, drivers.carry_out)
    afail = partial(_fail, using, drivers.acarry_out)
    with patch.object(drivers, "carry_out", fail), patch.object(drivers, "acarry_out", afail):
        yield
    renewer.at_exit()


def _fail(using: str | None, carry_out: Callable[..., Any], port: Any, step: Any) -> Any:
    alias = getattr(port, "alias", None)  # which the port of a part of a call has not
    if not isinstance(step, Call) or alias is None or using not in (None, alias):
        return carry_out(port, step)
    error = LockUnavailable(
        f"LOCKS[{alias!r}] is not available: the test uses unavailable().", name=step.lock_name
    )
    error.passing = False  # a retry would meet the same
    error.not_applied = isinstance(step, FORCED_RELEASE)  # nothing was sent
    raise error


class LockRecorder:
    """Notes what happens to locks during a block, by signals: their names in order, in lists.

    What the tools of ``django_redis_lock.testing`` do themselves is not noted.
    """

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.acquired: list[str] = []
        self.not_acquired: list[str] = []
        self.released: list[str] = []
        self.detached: list[str] = []
        self.lost: list[str] = []
        self.force_released: list[str] = []
        self.freed: list[str] = []
        self.unavailable: list[str] = []  # with an empty name for all or several locks
        self.events: list[tuple[str, str]] = []  # all in their order, as ``("acquired", name)``
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for event in vars(self):
            if signal := getattr(signals, f"lock_{event}", None):
                receiver = signals.never_blocks(partial(self._note, event))
                signal.connect(receiver, weak=False)
                self._stack.callback(signal.disconnect, receiver)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        """Forget what has been noted."""
        for noted in vars(self).values():
            if isinstance(noted, list):
                noted.clear()

    def _note(self, event: str, name: str, **kwargs: Any) -> None:
        getattr(self, event).append(name)
        self.events.append((event, name))


def finish_releases(backends: Collection[BaseLockBackend]) -> None:
    """Send what is still to be sent to some backends, and drop what does not arrive."""
    renewer.at_exit()
    for server in [*renewer.servers.values()]:
        if server.backend in backends:
            server.withdrawals.clear()


class LockSpace:
    """Keeps the locks of all aliases in a place of their own during a block.

    - ``"memory"``: in the memory of this process; no server is needed.
    - ``"settings"``: as set in ``LOCKS``, with nothing changed.

    It also applies when a test changes ``LOCKS``. Aliases with the dummy backend stay as they are.
    """

    def __init__(self, kind: Kind = "memory") -> None:
        check_choice("kind", kind, get_args(Kind))
        self.kind = kind
        self.isolated = kind == "memory"  # no other process has locks here
        self._id = f"test-{secrets.token_hex(4)}"
        self._made: dict[str, BaseLockBackend] = {}  # those of temporary settings, too
        self._outer: Any = None

    def __enter__(self) -> Self:
        self._outer, locks.space = locks.space, self
        locks.reset()
        signals.lock_acquired.connect(_note_line)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self.isolated:
                self._empty({})
        finally:
            locks.space = self._outer
            locks.reset()
            if self._outer is None:
                signals.lock_acquired.disconnect(_note_line)
            for backend in [*self._made.values()]:
                backend.close()
            self._made.clear()

    @contextmanager
    def one_test(self, *, fail_on_held: bool = False) -> Iterator[None]:
        """Release what is acquired during the block and still held at its end, if isolated.

        Locks that were held before, as by a fixture of the session, stay. With ``fail_on_held``
        raises ``AssertionError`` if there is any.
        """
        _lines.clear()
        before = self._held()
        limits = {each: each.store.limits.copy() for each in self._in_memory}
        yield
        finish_releases([*self._made.values()])
        left = {key: hold for key, hold in self._held().items() if key not in before}
        if self.isolated:
            self._empty(before)
            for each in self._in_memory:
                each.store.limits = limits.get(each, {})
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
        moved: Any = LocMemLockBackend
        if not (kind.can_share and kind.can_pass):  # errors name the class
            abilities = {"can_share": kind.can_share, "can_pass": kind.can_pass}
            moved = type(kind.__name__, (LocMemLockBackend,), abilities)
        return moved, {**params, "LOCATION": f"{self._id} {params.get('LOCATION') or ''}"}

    def note(self, backend: BaseLockBackend) -> None:
        self._made[f"{backend.alias} {backend.params}"] = backend

    @property
    def _in_memory(self) -> list[LocMemLockBackend]:
        return [each for each in [*self._made.values()] if isinstance(each, LocMemLockBackend)]

    def _held(self) -> Holds:
        found: Holds = {}
        for key, backend in [*self._made.items()]:
            try:
                found |= _held([backend], others=self.isolated)
            except LockUnavailable as error:  # as in a test of an outage
                logger.debug("Could not read which locks a test left: %s", error)
                if backend not in locks.made():  # those are not asked again
                    del self._made[key]
        return found

    def _empty(self, but: Holds) -> None:
        """Release what is held and what waiters get, all ``but`` some, and forget the audit."""
        for backend in self._in_memory:
            backend.store.audit.clear()
            for _ in range(1000):  # each time, waiters may get locks
                held = _held([backend], others=True)
                left = [holder for key, holder in held.items() if key not in but]
                if not left:
                    break
                for holder in left:
                    if lease := register.of_hold(holder.token_id):
                        # This process neither renews it from now on, nor notices the loss.
                        renewer.discard(lease)
                        lease.lose(REASON_EXPIRED)
                    take(backend, holder)
            else:
                logger.warning("Threads of a test kept acquiring locks, such as %r", left[0].name)


class LockTestMixin(TestCase):
    """Give the test methods of a class a lock space, empty for each of them.

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
        cls._space = cls.enterClassContext(LockSpace(cls.lock_space))
        super().setUpClass()

    def setUp(self) -> None:
        self.enterContext(self._space.one_test(fail_on_held=self.fail_on_held_locks))
        super().setUp()


def assert_no_locks_held(using: str | None = None) -> None:
    """Raise ``AssertionError`` if a lock is held, saying which, where it was acquired and by whom.

    It checks all aliases that were used, or one; outside of a ``LockSpace``, only what this process
    holds. A task's lock that rests (``at_least_for``) does not count. Releases that failed are sent
    first. Raises ``LockUnavailable``.
    """
    backends = locks.made() if using is None else [locks[using]]
    finish_releases(backends)
    _check(_held(backends, others=locks.space is not None and locks.space.isolated))


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
    # A Celery task holds a resting lock on purpose, for some time after its end.
    lines = [_line(one) for one in left.values() if one.marks.get("state") != "resting"]
    if lines:
        count = "1 lock is" if len(lines) == 1 else f"{len(lines)} locks are"
        raise AssertionError("\n".join([f"{count} still held:", *lines]))


def _line(holder: Holder) -> str:
    line = f"  {holder.name!r} (LOCKS[{holder.using!r}])"
    if holder.token_id in _lines:
        line += f", acquired at {_lines[holder.token_id]}"
    if holder.held_for is not None and holder.acquired_at is not None:
        line += f", for {holder.held_for:.2f} s since {holder.acquired_at:%H:%M:%S} UTC"
    if holder.pid is not None:
        line += f", by thread {holder.thread!r} of process {holder.pid}"
    if holder.task_name:
        line += f", for task {holder.task_name}[{holder.task_id}]"
    return line


@signals.never_blocks
def _note_line(lock: Lock, **kwargs: Any) -> None:
    for frame, line in traceback.walk_stack(None):
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        installed = "site-packages" in file or file.startswith(os.path.dirname(os.__file__))
        if not installed and module.partition(".")[0] != "django_redis_lock":
            _lines[lock.token_id] = _lines[lock.ticket] = f"{os.path.relpath(file)}:{line}"
            return
