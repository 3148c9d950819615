"""Renews leases in the background, and sends releases that did not reach their server.

Each server has threads of its own, so that none waits for another.
"""

from __future__ import annotations

import atexit
import heapq
import logging
import math
import threading
import time
import weakref
from collections.abc import Hashable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from django_redis_lock import signals
from django_redis_lock.backends.watching import Watcher
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol.calls import Release, Renew
from django_redis_lock.protocol.conversation import ask
from django_redis_lock.protocol.drivers import run
from django_redis_lock.protocol.lease import Lease, milliseconds
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")
EXIT = 1.0
"""Seconds for which the end of the process waits for releases that could not be sent before."""
BATCH = 500
"""How many leases one call renews: the server does nothing else while it runs a script."""
VERIFY_AFTER = 0.25
"""Seconds after which the server is asked whether a lock that was handed off is still held."""
MAX_HOLD_PASSED = "it was held for as long as its max_hold allows"
"""Why a lock is lost that is no longer renewed."""


class Kept:
    """A lease to renew or to verify, and when that is due (monotonic)."""

    __slots__ = ("due", "last", "lease", "lock", "ms", "name", "period", "soon", "token", "tried")

    def __init__(self, lease: Lease, lock: Any, *, renew: bool) -> None:
        self.lease = weakref.ref(lease)
        self.lock = weakref.ref(lock)
        self.name = lease.name
        self.token = lease.token
        self.tried = False  # and not answered yet
        self.last = False  # this was the last renewal: the lease ends at its ``renew_until``
        if renew and lease.timeout is not None:
            self.ms, self.period = milliseconds(lease.timeout), lease.timeout / 3
        else:
            self.ms, self.period = 0, math.inf  # only to be verified
        self.schedule(lease)

    def schedule(self, lease: Lease) -> None:
        """Set ``due``, and ``soon``: from when on it can join a call for other leases."""
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
        """Return how much of the lease to ask for (ms); 0 only looks at it."""
        if lease.renew_until == math.inf:
            return self.ms
        return min(self.ms, max(0, milliseconds(lease.renew_until - monotonic())))

    def hurry(self, seconds: float) -> None:
        """Be due in time for a lease that may end in so many seconds."""
        if self.ms:
            self.due = min(self.due, monotonic() + seconds / 3)
            self.soon = min(self.soon, self.due)

    def end(self, lease: Lease) -> float:
        """Return when the lock counts as lost if the server does not answer."""
        return lease.deadline if lease.verify_by is None else min(lease.deadline, lease.verify_by)

    def postpone(self, lease: Lease, now: float) -> None:
        """Try again later, but several times before the end."""
        left = max(0.05, (self.end(lease) - now) / 4)
        self.soon = self.due = now + min(1.0, self.period / 4, left)


class Withdrawal:
    """A release that did not reach the server, and when to send it again (monotonic)."""

    __slots__ = ("call", "due", "until")

    def __init__(self, call: Release, until: float) -> None:
        self.call = call
        self.until = until
        self.postpone()

    def postpone(self) -> None:
        self.due = monotonic() + 0.5


def mark_lost(lease: Lease, reason: str) -> bool:
    """Mark and log a lease as lost; return whether it was not known yet."""
    lease.lost = True
    if lease.reported:
        return False
    lease.reported = True
    logger.error("Lock %r was lost while it was held: %s", lease.name, reason)
    return True


Batch = list[tuple[Kept, Lease]]


class Renewer:
    """Keeps every registered lease alive until it is discarded, lost or garbage-collected.

    A lease is renewed after a third of its length, together with others of the same server that are
    due soon. While the server can't be reached this is retried until the lease has expired; then
    the lock is lost. A lock that was handed off is verified once, soon after it was acquired, as
    the server takes it back if it does not hear from its new holder.

    A release or withdrawn request that did not reach the server is sent again.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the leases of the parent process; threads are started when needed."""
        self.mutex = threading.RLock()
        self._leases: dict[str, ServerRenewer] = {}
        self._servers: dict[tuple[Any, Hashable], ServerRenewer] = {}

    def add(self, lease: Lease, backend: Any, lock: Any, *, renew: bool = True) -> None:
        """Renew a lease from now on, or only verify it; references to it are weak."""
        kept = Kept(lease, lock, renew=renew)
        with self.mutex:
            self.assign(kept, backend)

    def discard(self, lease: Lease | Kept) -> None:
        """Stop renewing a lease, at once."""
        token = lease.token
        if token in self._leases:
            with self.mutex:
                server = self._leases.get(token)
                if server is not None:
                    server.leases.pop(token, None)
                    # Last, to be repeatable. A signal handler may have released the lock, too.
                    self._leases.pop(token, None)

    def was_set(self, leases: Iterable[Lease], lease_ms: Iterable[int]) -> None:
        """Renew leases in time that their holder has set, or may have set, to so many ms."""
        with self.mutex:
            for lease, ms in zip(leases, lease_ms, strict=True):
                server = self._leases.get(lease.token)
                kept = None if server is None else server.leases.get(lease.token)
                if server is not None and kept is not None and ms > 0:
                    kept.hurry(ms / 1000)
                    server.wake(kept.due)

    def withdraw(
        self, call: Release, backend: Any, seconds: float, *, at_once: bool = False
    ) -> None:
        """Send a call in the background until it arrives, or for so many seconds.

        It is first sent after half a second, unless ``at_once``.
        """
        withdrawal = Withdrawal(call, monotonic() + seconds)
        if at_once:
            withdrawal.due = monotonic()
        with self.mutex:
            server = self._server(backend, call.name)
            server.withdrawals[withdrawal] = None
            with suppress(RuntimeError):  # the process is ending: ``at_exit`` sends it
                server.wake(withdrawal.due)

    def at_exit(self) -> None:
        """Try once more to send what could not be sent, for a second at most.

        If no thread can be started any more, this one sends it, which takes as long as the calls.
        """
        deadline = monotonic() + EXIT
        with self.mutex:
            owing = [server for server in self._servers.values() if server.withdrawals]
            alone = [server for server in owing if not server.hurry()]
        for server in alone:
            server.work()
        while monotonic() < deadline and any(server.hurried for server in owing):
            time.sleep(0.005)

    def keeps(self, kept: Kept) -> bool:
        """Whether a lease is still renewed."""
        server = self._leases.get(kept.token)
        return server is not None and server.leases.get(kept.token) is kept

    def forget(self, kept: Kept) -> bool:
        """Stop renewing a lease; return whether it was renewed until now."""
        with self.mutex:
            if not self.keeps(kept):
                return False
            self.discard(kept)
            return True

    def assign(self, kept: Kept, backend: Any) -> None:
        """Give a lease to the server that has its lock; the caller holds the mutex."""
        self.discard(kept)
        server = self._leases[kept.token] = self._server(backend, kept.name)
        server.leases[kept.token] = kept
        server.wake(kept.due)

    def close(self, server: ServerRenewer) -> None:
        """Drop a server with nothing to do; the caller holds the mutex."""
        self._servers = {key: item for key, item in self._servers.items() if item is not server}

    def _server(self, backend: Any, name: str) -> ServerRenewer:
        place = backend, backend.together(name)
        server = self._servers.get(place)
        if server is None:
            server = self._servers[place] = ServerRenewer(self, *place)
        return server


class ServerRenewer:
    """Renews the leases on one server, and sends again what did not reach it.

    While a call hangs, another thread retries over another connection and reports losses in time.
    """

    CALLS = 3
    """How many calls may be under way at once; there is more than one only while calls hang."""
    BATCHES = 20
    """How many batches are sent before looking for leases that have become due."""

    def __init__(self, renewer: Renewer, backend: Any, together: Hashable) -> None:
        self._renewer = renewer
        self._backend = backend
        self._together = together
        self._mutex = renewer.mutex
        self.leases: dict[str, Kept] = {}
        self.withdrawals: dict[Withdrawal, None] = {}
        name = f"django-redis-lock-renewal-{backend.alias}"
        self._watcher = Watcher(name, self._mutex, self._next_due, self.work)
        self.wake = self._watcher.wake
        self._calls = 0

    def hurry(self) -> bool:
        """Send all withdrawals now, if there is a thread for it. The caller holds the mutex."""
        for item in self.withdrawals:
            item.due = 0.0
        try:
            self.wake(0.0)
        except RuntimeError:
            return False
        return True

    @property
    def hurried(self) -> bool:
        """Whether there is something that was not tried since ``hurry``."""
        with self._mutex:
            return self._calls > 0 or any(item.due == 0.0 for item in self.withdrawals)

    def _next_due(self, woken: bool) -> float | None:
        work: list[Kept | Withdrawal] = [*self.leases.values(), *self.withdrawals]
        if not (work or woken):
            self._renewer.close(self)
            return None
        return min((item.due for item in work), default=math.inf)

    def work(self) -> None:
        """Do what is due now."""
        with self._mutex:
            now = monotonic()
            due = [kept for kept in self.leases.values() if kept.soon <= now]
            if len(due) > self.BATCHES * BATCH:
                due = heapq.nsmallest(self.BATCHES * BATCH, due, key=lambda kept: kept.due)
            owed = [item for item in self.withdrawals if item.due <= now]
            may_call = self._calls < self.CALLS
            good, overdue, dropped = self._sort(due, may_call=may_call)
            for item in owed:
                item.postpone()
            if may_call:
                self._calls += 1
                try:
                    self._watcher.hand_off()
                except RuntimeError:  # the process is ending, and this thread goes on alone
                    logger.debug("No other thread can watch while the server is asked")
        try:
            self._lose_overdue(overdue)
            self._warn_of_dropped(dropped)
            if may_call:
                self._renew(good)
                self._send(owed)
        except Exception:
            logger.exception("The renewal of leases failed, and goes on")
        finally:
            with self._mutex:
                self._calls -= may_call

    def _sort(self, due: list[Kept], *, may_call: bool) -> tuple[Batch, Batch, list[Kept]]:
        """Return the leases to renew, those that are overdue, and those whose handle is gone."""
        good, overdue, dropped = Batch(), Batch(), list[Kept]()
        now = monotonic()
        for kept in due:
            lease = kept.lease()
            if lease is None:
                dropped.append(kept)
            elif not kept.ms and (lease.passed or lease.verify_by is None):  # nothing to verify
                self._renewer.forget(kept)
            elif (kept.tried or kept.last) and kept.end(lease) <= now:
                overdue.append((kept, lease))
            else:
                kept.tried |= may_call
                kept.postpone(lease, now)
                if self._backend.together(kept.name) == self._together:
                    good.append((kept, lease))
                elif self._renewer.keeps(kept):  # its lock has moved to another server
                    kept.soon = kept.due = now
                    self._renewer.assign(kept, self._backend)
        return good, overdue, dropped

    def _warn_of_dropped(self, dropped: list[Kept]) -> None:
        for kept in dropped:
            if self._renewer.forget(kept) and kept.ms:
                logger.warning(
                    "Lock %r was dropped without being released, and becomes free within %.1f s. "
                    "Keep the handle, or use it as a context manager.",
                    kept.name,
                    kept.ms / 1000,
                )

    def _renew(self, leases: Batch) -> None:
        for begin in range(0, len(leases), BATCH):
            try:
                self._renew_batch(leases[begin : begin + BATCH])
            except LockError as error:
                self._failed(leases[begin:], error)
                return

    def _renew_batch(self, batch: Batch) -> None:
        versions = [None if lease.being_set else lease.version for _, lease in batch]
        wanted = [kept.wanted(lease) for kept, lease in batch]
        holds = [(kept.name, kept.token, ms) for (kept, _), ms in zip(batch, wanted, strict=True)]
        call = Renew(holds, at_least=True, patient=False)
        answers = self._backend.run(ask(call))
        told = zip(batch, versions, wanted, answers, strict=True)
        for (kept, lease), version, ms, left_ms in told:
            kept.tried = False
            if left_ms is None:  # too few servers of a quorum have answered
                if lease.passed:
                    self._lose(kept, lease, "too few servers answered in time")
            elif left_ms < -1:
                self._lose(kept, lease, "it expired or was broken", gone=True)
            else:
                lease.verify_by = None
                if not kept.ms:
                    self._renewer.forget(kept)
                elif lease.version == version and self._renewer.keeps(kept):
                    # Otherwise its holder has released it, or sets it to something else.
                    lease.renewed(left_ms, call.sent_at)
                    kept.last = ms < kept.ms
                    kept.schedule(lease)

    def _failed(self, leases: Batch, error: LockError) -> None:
        now = monotonic()
        overdue = [(kept, lease) for kept, lease in leases if kept.end(lease) <= now]
        if number := len(leases) - len(overdue):
            logger.warning("%d locks were not renewed, trying again: %s", number, error)
        for kept, lease in leases:
            kept.postpone(lease, now)
        self._lose_overdue(overdue, f": {error}")

    def _lose_overdue(self, leases: Batch, error: str = "") -> None:
        for kept, lease in leases:
            why = f"the server could not be reached in time{error}"
            self._lose(kept, lease, MAX_HOLD_PASSED if kept.last else why)

    def _lose(self, kept: Kept, lease: Lease, reason: str, *, gone: bool = False) -> None:
        """Report a loss, unless it is no news.

        Unless it is ``gone``, the server may still hold the lock, so it is released.
        """
        if not self._renewer.forget(kept):
            return  # its holder has released it, or a lease that was only verified has ended
        if not gone:
            call = Release(lease.name, lease.token, patient=False)
            self._renewer.withdraw(call, self._backend, lease.longest)
        if lease.release_sent_at is not None:  # the release may have been carried out
            lease.lost = True
        elif mark_lost(lease, reason):
            sender, using = type(self._backend), self._backend.alias
            signals.lock_lost.send_robust(sender, using=using, name=lease.name, lock=kept.lock())

    def _send(self, owed: list[Withdrawal]) -> None:
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


renewer = Renewer()
"""The renewer of this process."""
atexit.register(renewer.at_exit)
