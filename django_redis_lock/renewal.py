"""Keeps this process's word to the servers from one thread: leases renewed, requests withdrawn."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Generator, Hashable
from time import monotonic
from typing import Any

from django_redis_lock import audit, signals
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.identity import forget_after_fork
from django_redis_lock.lease import Lease, milliseconds
from django_redis_lock.protocol import ask
from django_redis_lock.steps import NoteLosses, Release, ReleaseMany, Renew, Step

logger = logging.getLogger("django_redis_lock")
Withdrawing = Release | ReleaseMany | NoteLosses
NOTE_FOR = 60.0
"""Seconds for which losses are sent to an audit that can't be reached."""


class Renewer:
    """Keeps every registered lease alive until it is discarded, lost or garbage.

    A lease is renewed when a third of it has passed, together with all that are due soon, in one
    round trip for each backend, or for each node of a cluster. While the server can't be reached
    it is tried again until the lease has passed, which is a loss.

    A request whose withdrawal did not reach the server is withdrawn here as soon as it does, so
    that a server which carries it out late does not keep a lock for nobody.
    """

    IDLE = 5.0
    """Seconds between looks at the list; also how long the thread outlives its last lease."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the leases of the parent process; a thread is started when one is needed."""
        # Callers take the bare lock, for an exception from a signal handler that meets them in
        # ``Condition.__enter__`` would leave it taken for ever.
        self._mutex = threading.RLock()
        self._condition = threading.Condition(self._mutex)
        self._leases: dict[str, _Kept] = {}
        self._withdrawals: list[_Withdrawal] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def add(self, lease: Lease, backend: Any, lock: Any) -> None:
        """Renew a lease from now on; the reference to it is weak."""
        kept = _Kept(lease, backend, lock)
        with self._mutex:
            self._leases[lease.token] = kept
            self._see_to(kept.due)

    def discard(self, lease: Lease) -> None:
        """Renew a lease no more, from this instant on."""
        with self._mutex:
            self._leases.pop(lease.token, None)

    def withdraw(self, call: Withdrawing, backend: Any, seconds: float) -> None:
        """Send a withdrawal until it arrives, or until what it is about has passed by itself.

        An entry of the audit that did not reach the server is sent in the same way.
        """
        withdrawal = _Withdrawal(call, backend, monotonic() + seconds)
        with self._mutex:
            self._withdrawals.append(withdrawal)
            self._see_to(withdrawal.due)

    def _see_to(self, due: float) -> None:
        """Make sure that the thread is awake at a moment (monotonic)."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = None
            thread = threading.Thread(
                target=self._run, name="django-redis-lock-renewal", daemon=True
            )
            thread.start()
            self._thread = thread
        elif due < self._wakes_at:
            self._wakes_at = due
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._mutex:
                now = monotonic()
                work: list[_Kept | _Withdrawal] = [*self._leases.values(), *self._withdrawals]
                nearest = min((item.due for item in work), default=now + self.IDLE)
                if nearest > now:
                    # Woken for a lease that was released since, sleep on until it would have been
                    # due: then locks held briefly wake this thread now and then, not each time.
                    early = self._wakes_at if self._wakes_at > now else nearest
                    self._wakes_at = min(now + self.IDLE, nearest, early)
                    woken = self._condition.wait(self._wakes_at - now)
                    if not (woken or work or self._leases or self._withdrawals):
                        self._thread = None
                        return
                    continue
                leases = [kept for kept in [*self._leases.values()] if kept.soon <= now]
                withdrawals = [item for item in self._withdrawals if item.due <= now]
            try:
                self._renew(leases)
                self._withdraw(withdrawals)
            except Exception:
                logger.exception("The renewal of leases failed, and goes on")
                for kept in leases:
                    kept.postpone()

    def _renew(self, due: list[_Kept]) -> None:
        batches: dict[tuple[Any, Hashable], list[tuple[_Kept, Lease]]] = {}
        for kept in due:
            lease = kept.lease()
            if lease is not None:
                whole = kept.backend, kept.backend.together(kept.name)
                batches.setdefault(whole, []).append((kept, lease))
            elif self._forget(kept):
                logger.warning(
                    "Lock %r was dropped without being released, and is free in %.1f s at the "
                    "latest. Keep the handle, or use it as a context manager.",
                    kept.name,
                    kept.timeout,
                )
        for (backend, _), batch in batches.items():
            self._renew_batch(backend, batch)

    def _renew_batch(self, backend: Any, batch: list[tuple[_Kept, Lease]]) -> None:
        versions = [lease.version for _, lease in batch]
        losses: list[audit.Fields] = []
        call = Renew(
            [(lease.name, lease.token, milliseconds(kept.timeout)) for kept, lease in batch],
            at_least=True,
            patient=False,
        )
        try:
            answers = backend.run(ask(call))
        except LockError as error:
            for kept, lease in batch:
                if lease.passed:
                    reason = f"the server could not be reached in time: {error}"
                    losses += self._lose(kept, lease, reason)
                else:
                    logger.warning("Lock %r was not renewed, trying again: %s", kept.name, error)
                    kept.postpone()
            if losses:  # not now, for the server does not answer
                self.withdraw(NoteLosses(losses), backend, NOTE_FOR)
            return
        for (kept, lease), version, left_ms in zip(batch, versions, answers, strict=True):
            if why := _why_lost(lease, left_ms):
                losses += self._lose(kept, lease, why)
            elif left_ms is None or lease.version != version:
                kept.postpone()  # not known; or the holder set it meanwhile, which may come last
            elif self._leases.get(lease.token) is kept:  # else released meanwhile
                lease.renewed(left_ms, call.sent_at)
                kept.schedule(lease)
        if losses:
            backend.run(note_losses(losses, backend))

    def _withdraw(self, due: list[_Withdrawal]) -> None:
        unreachable = set()
        for item in due:
            item.postpone()
            try:
                if item.backend in unreachable:
                    raise LockUnavailable("not asked again")
                item.backend.run(ask(item.call))
            except LockError:
                unreachable.add(item.backend)
                if monotonic() < item.until:
                    continue
            # A signal's exception can bring about a second thread, which may have been quicker.
            with self._mutex, contextlib.suppress(ValueError):
                self._withdrawals.remove(item)

    def _forget(self, kept: _Kept) -> bool:
        """Take a lease off the list; return whether it was on it."""
        with self._mutex:
            return self._leases.pop(kept.token, None) is not None

    def _lose(self, kept: _Kept, lease: Lease, reason: str) -> list[audit.Fields]:
        """Tell of a loss; return its entry for the audit, unless it is known."""
        if self._forget(kept):  # else it was released, and is not missed
            lock = kept.lock()
            if mark_lost(lease, reason):
                signals.lock_lost.send_robust(
                    sender=type(kept.backend), using=kept.backend.alias, name=lease.name, lock=lock
                )
                return [audit.lost(lease, reason)]
        return []


class _Kept:
    """A lease on the list, and when its turn comes (monotonic)."""

    __slots__ = ("backend", "due", "lease", "lock", "name", "period", "timeout", "token")

    def __init__(self, lease: Lease, backend: Any, lock: Any) -> None:
        assert lease.timeout is not None
        self.lease = weakref.ref(lease)
        self.lock = weakref.ref(lock)
        self.backend = backend
        self.name = lease.name
        self.token = lease.token
        self.timeout = lease.timeout
        self.period = lease.timeout / 3
        self.schedule(lease)

    @property
    def soon(self) -> float:
        """From when on the renewal can join that of others."""
        return self.due - self.period / 4

    def schedule(self, lease: Lease) -> None:
        self.due = min(lease.deadline - 2 * self.period, monotonic() + self.period)

    def postpone(self) -> None:
        self.due = monotonic() + min(1.0, self.period / 4)


class _Withdrawal:
    """A request to be taken back, and when to try (monotonic)."""

    __slots__ = ("backend", "call", "due", "until")

    def __init__(self, call: Withdrawing, backend: Any, until: float) -> None:
        self.call = call
        self.backend = backend
        self.until = until
        self.postpone()

    def postpone(self) -> None:
        self.due = monotonic() + 0.5


def _why_lost(lease: Lease, left_ms: int | None) -> str:
    """Return why a lease is lost after a renewal, ``""`` where it is not."""
    if left_ms is None:  # too few of several servers know
        return "too few servers answered in time" if lease.passed else ""
    return "it expired or was broken" if left_ms < -1 else ""


def mark_lost(lease: Lease, reason: str) -> bool:
    """Mark and log a lease as lost; return whether that is news, and ``lock_lost`` to be sent."""
    lease.lost = True
    if lease.reported:
        return False
    lease.reported = True
    logger.error("Lock %r was lost while it was held: %s", lease.name, reason)
    return True


def note_losses(entries: list[audit.Fields], backend: Any) -> Generator[Step, Any, None]:
    """Write losses into the audit; whatever hinders it is nothing to the caller."""
    call = NoteLosses(entries)
    try:
        yield from ask(call)
    except Exception as error:
        if isinstance(error, LockUnavailable) and not error.refused:
            renewer.withdraw(call, backend, NOTE_FOR)
        else:
            logger.warning("The loss of %d locks is not in the audit: %s", len(entries), error)


renewer = Renewer()
"""The one of this process."""
