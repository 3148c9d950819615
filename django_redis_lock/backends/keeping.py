"""The threads that see to the leases on one server, and to what is owed to it.

Callers touch nothing but bare locks here, for an exception from a signal handler that met them in
Python code of ``threading`` would leave a condition taken for ever, or make a thread count as ended
that runs on.
"""

from __future__ import annotations

import _thread
import heapq
import logging
import math
import threading
import weakref
from collections.abc import Hashable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from django_redis_lock import signals
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import audit
from django_redis_lock.protocol.calls import NoteLosses, Release, ReleaseMany, Renew
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import run
from django_redis_lock.protocol.lease import Lease, milliseconds

if TYPE_CHECKING:
    from django_redis_lock.backends.renewal import Renewer

logger = logging.getLogger("django_redis_lock")
Withdrawing = Release | ReleaseMany | NoteLosses
NOTE_FOR = 60.0
"""Seconds for which losses are sent to an audit that can't be reached."""
BATCH = 500
"""How many leases are renewed in one call: a server runs a script whole, and does nothing else."""
VERIFY_AFTER = 0.25
"""Seconds after which the server is asked whether a lock that was handed over is still held."""
MAX_HOLD_PASSED = "it was held for as long as its max_hold allows"
"""Why a lock is lost that is not renewed any longer."""


class Server:
    """The leases on one server, and what is owed to it.

    One thread watches. When something is due it leaves the watch to another one and makes the call;
    so while a call hangs, what it was for is tried again over another connection, and losses are
    told of in time. A thread that comes back and finds the watch taken ends.
    """

    CALLS = 3
    """How many calls may be under way at once; only calls that hang come to more than one."""
    BATCHES = 20
    """How many are sent one after another before leases that are due earlier are looked for."""

    def __init__(self, renewer: Renewer, backend: Any, together: Hashable) -> None:
        self._renewer = renewer
        self._backend = backend
        self._together = together
        self._mutex = renewer.mutex
        self.leases: dict[str, Kept] = {}
        self.withdrawals: dict[Withdrawal, None] = {}
        self._watcher: threading.Thread | None = None
        self._bell = threading.Lock()  # is taken by the watcher, to wait until somebody rings
        self._wakes_at = 0.0
        self._calls = 0

    def take(self, kept: Kept) -> None:
        """Look after a lease; to be called with the mutex, as are ``ring`` and ``hurry``."""
        kept.server = self
        self.leases[kept.token] = kept
        self.ring(kept.due)

    def ring(self, due: float) -> None:
        """Make sure that a thread is awake at a moment (monotonic)."""
        if self._watcher is None:
            self._start()
        elif due < self._wakes_at:
            if self._bell.locked():
                self._bell.release()
            self._wakes_at = due

    def hurry(self) -> None:
        """Send what is owed now."""
        for item in self.withdrawals:
            item.due = 0.0
        self.ring(0.0)

    @property
    def hurried(self) -> bool:
        """Whether there is something that was not tried since."""
        with self._mutex:
            return self._calls > 0 or any(item.due == 0.0 for item in self.withdrawals)

    def _start(self) -> None:
        name = f"django-redis-lock-renewal-{self._backend.alias}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        # ``start`` is Python code that a signal could meet, so a thread that no signal meets does
        # it. Interrupted before the next line, it is for ``_run`` to say who watches.
        _thread.start_new_thread(self._begin, (thread,))
        self._watcher = thread

    def _begin(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except BaseException:
            with self._mutex:
                if self._watcher is thread:
                    self._watcher = None  # so that the next caller tries again
            raise

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while True:
                with self._mutex:
                    if self._watcher not in (None, me):
                        return
                    self._watcher = me
                if not self._watch():
                    return
        finally:
            with self._mutex:
                if self._watcher is me:
                    self._watcher = None

    def _watch(self) -> bool:
        """Wait for something to be due and do it; return False where there is nothing to do."""
        rung = True
        while True:
            with self._mutex:
                now = monotonic()
                leases, owed = [*self.leases.values()], [*self.withdrawals]
                work: list[Kept | Withdrawal] = [*leases, *owed]
                nearest = min((item.due for item in work), default=now + self._renewer.IDLE)
                if nearest <= now:
                    break
                if not (rung or work):
                    self._watcher = None
                    self._renewer.close(self)
                    return False
                # Woken for a lease that was released since, sleep on until it would have been due:
                # then locks held briefly wake this thread now and then, not each time.
                early = self._wakes_at if self._wakes_at > now else nearest
                self._wakes_at = min(now + self._renewer.IDLE, nearest, early)
            rung = self._bell.acquire(timeout=self._wakes_at - now)
        due = [kept for kept in leases if kept.soon <= now]
        if len(due) > self.BATCHES * BATCH:
            due = heapq.nsmallest(self.BATCHES * BATCH, due, key=lambda kept: kept.due)
        self._see_to(due, [item for item in owed if item.due <= now])
        return True

    def _see_to(self, due: list[Kept], owed: list[Withdrawal]) -> None:
        with self._mutex:
            may_ask = self._calls < self.CALLS
            batch = self._sort(due, may_ask=may_ask)
            for item in owed:
                item.postpone()
            if may_ask:
                self._calls += 1
                self._watcher = None
                try:
                    self._start()
                except RuntimeError:  # the process is ending, and this thread goes on alone
                    logger.debug("No other thread can watch while the server is asked")
        try:
            self._tell_overdue(batch.overdue)
            self._warn_of_dropped(batch.dropped)
            if may_ask:
                self._renew(batch.good)
                self._withdraw(owed)
        except Exception:
            logger.exception("The renewal of leases failed, and goes on")
        finally:
            with self._mutex:
                self._calls -= may_ask

    def _sort(self, due: list[Kept], *, may_ask: bool) -> _Due:
        """Say what is to be done about leases; until it is, they count as not answered."""
        found, now = _Due([], [], []), monotonic()
        for kept in due:
            lease = kept.lease()
            if lease is None:
                found.dropped.append(kept)
            elif not kept.ms and (lease.passed or lease.verify_by is None):  # nothing to verify
                self._renewer.forget(kept)
            elif (kept.tried or kept.last) and kept.end(lease) <= now:
                found.overdue.append((kept, lease))
            else:
                kept.tried |= may_ask
                kept.postpone(lease, now)
                if self._backend.together(kept.name) == self._together:
                    found.good.append((kept, lease))
                else:
                    kept.due = now
                    self._renewer.move(kept, self._backend)
        return found

    def _warn_of_dropped(self, dropped: list[Kept]) -> None:
        for kept in dropped:
            if self._renewer.forget(kept) and kept.ms:
                logger.warning(
                    "Lock %r was dropped without being released, and is free in %.1f s at the "
                    "latest. Keep the handle, or use it as a context manager.",
                    kept.name,
                    kept.ms / 1000,
                )

    def _renew(self, leases: list[tuple[Kept, Lease]]) -> None:
        for begin in range(0, len(leases), BATCH):
            try:
                self._renew_batch(leases[begin : begin + BATCH])
            except LockError as error:
                self._failed(leases[begin:], error)
                return

    def _renew_batch(self, batch: list[tuple[Kept, Lease]]) -> None:
        versions = [lease.version for _, lease in batch]
        losses: list[audit.Fields] = []
        wanted = [kept.wanted(lease) for kept, lease in batch]
        holds = [
            (lease.name, lease.token, ms) for (_, lease), ms in zip(batch, wanted, strict=True)
        ]
        call = Renew(holds, at_least=True, patient=False)
        answers = self._backend.run(ask(call))
        told = zip(batch, versions, wanted, answers, strict=True)
        for (kept, lease), version, ms, left_ms in told:
            kept.tried = False
            if why := _why_lost(lease, left_ms):
                if left_ms is None:
                    self._give_back(lease)
                losses += self._lose(kept, lease, why)
                continue
            if left_ms is None:
                continue  # not known, and tried again
            lease.verify_by = None
            if not kept.ms:
                self._renewer.forget(kept)
            elif lease.version == version and self._renewer.keeps(kept):
                # Else it was released; or the holder set it meanwhile, which may come last.
                lease.renewed(left_ms, call.sent_at)
                kept.last = ms < kept.ms
                kept.schedule(lease)
        if losses:
            self._backend.run(self._renewer.note_losses(losses, self._backend))

    def _failed(self, leases: list[tuple[Kept, Lease]], error: LockError) -> None:
        now, overdue = monotonic(), []
        for kept, lease in leases:
            if kept.end(lease) <= now:
                overdue.append((kept, lease))
            else:
                kept.postpone(lease, now)
        if len(overdue) < len(leases):
            number = len(leases) - len(overdue)
            logger.warning("%d locks were not renewed, trying again: %s", number, error)
        self._tell_overdue(overdue, f": {error}")

    def _tell_overdue(self, leases: list[tuple[Kept, Lease]], error: str = "") -> None:
        losses: list[audit.Fields] = []
        for kept, lease in leases:
            self._give_back(lease)
            why = f"the server could not be reached in time{error}"
            losses += self._lose(kept, lease, MAX_HOLD_PASSED if kept.last else why)
        cap = self._backend.operators.audit_entries
        for begin in range(0, len(losses), BATCH):  # not now, for the server does not answer
            call = NoteLosses(losses[begin : begin + BATCH], cap)
            self._renewer.withdraw(call, self._backend, NOTE_FOR)

    def _give_back(self, lease: Lease) -> None:
        """Have a lock released that counts as lost, for the server may have kept it."""
        seconds = math.inf if lease.timeout is None else lease.timeout
        self._renewer.withdraw(
            Release(lease.name, lease.token, patient=False), self._backend, seconds
        )

    def _lose(self, kept: Kept, lease: Lease, reason: str) -> list[audit.Fields]:
        """Tell of a loss; return its entry for the audit, unless it is known."""
        if not self._renewer.forget(kept):
            return []  # it was released, and is not missed
        if lease.release_sent_at is not None:  # it may be given up, as its holder wanted
            lease.lost = True
            return []
        lock, backend = kept.lock(), self._backend
        if not mark_lost(lease, reason):
            return []
        signals.lock_lost.send_robust(
            sender=type(backend), using=backend.alias, name=lease.name, lock=lock
        )
        return [audit.lost(lease, reason)]

    def _withdraw(self, owed: list[Withdrawal]) -> None:
        reachable = True
        for item in owed:
            arrived = reachable
            if reachable:
                try:
                    run(self._backend, ask(item.call))
                except LockUnavailable as error:
                    arrived, reachable = False, not error.passing
                except LockError as error:  # another program's key: there is nothing to give back
                    logger.warning("A lock was not given back: %s", error)
            with self._mutex:
                waiting = item in self.withdrawals
                self.withdrawals.pop(item, None)
                if waiting and not arrived and monotonic() < item.until:
                    self.withdrawals[item] = None  # behind the others


class _Due(NamedTuple):
    """What is to be done about leases."""

    good: list[tuple[Kept, Lease]]
    overdue: list[tuple[Kept, Lease]]
    dropped: list[Kept]


class Kept:
    """A lease on the list, and when its turn comes (monotonic)."""

    __slots__ = (
        "due",
        "last",
        "lease",
        "lock",
        "ms",
        "name",
        "period",
        "server",
        "soon",
        "token",
        "tried",
    )

    def __init__(self, lease: Lease, lock: Any, *, renew: bool) -> None:
        self.lease = weakref.ref(lease)
        self.lock = weakref.ref(lock)
        self.name = lease.name
        self.token = lease.token
        self.server: Server | None = None
        self.tried = False  # and not answered yet
        self.last = False  # renewed for the last time: it ends where ``renew_until`` has it
        if renew and lease.timeout is not None:
            self.ms, self.period = milliseconds(lease.timeout), lease.timeout / 3
        else:
            self.ms, self.period = 0, math.inf  # only to be verified
        self.schedule(lease)

    def schedule(self, lease: Lease) -> None:
        """Set ``due``, and ``soon``: from when on it can join what is done for others."""
        now = monotonic()
        pause = min(self.period, (lease.deadline - now) / 3)
        if self.last:
            self.soon = self.due = lease.deadline
        elif lease.verify_by is not None and (not self.ms or pause > VERIFY_AFTER):
            self.soon = now + VERIFY_AFTER
            self.due = now + 1.2 * VERIFY_AFTER
        else:
            self.due = now + pause
            self.soon = self.due - pause / 4

    def wanted(self, lease: Lease) -> int:
        """Return what to renew a lease to (ms), 0 to only look at it."""
        if lease.renew_until == math.inf:
            return self.ms
        return min(self.ms, max(0, milliseconds(lease.renew_until - monotonic())))

    def hurry(self, seconds: float) -> None:
        """Take in that the lease may end in so many seconds."""
        if self.ms:
            self.due = min(self.due, monotonic() + seconds / 3)
            self.soon = min(self.soon, self.due)

    def end(self, lease: Lease) -> float:
        """Return when the lock is lost if the server can't be asked."""
        return lease.deadline if lease.verify_by is None else min(lease.deadline, lease.verify_by)

    def postpone(self, lease: Lease, now: float) -> None:
        """Try again in a while, several times before it is too late."""
        left = max(0.05, (self.end(lease) - now) / 4)
        self.soon = self.due = now + min(1.0, self.period / 4, left)


class Withdrawal:
    """A request to be taken back, and when to try (monotonic)."""

    __slots__ = ("call", "due", "until")

    def __init__(self, call: Withdrawing, until: float) -> None:
        self.call = call
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
