"""Renews leases, and sends releases that did not arrive, in a thread of its own for each server."""

from __future__ import annotations

import atexit
import logging
import math
import time
import weakref
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any

from django_redis_lock import signals
from django_redis_lock.exceptions import LockError, LockUnavailable
from django_redis_lock.protocol import drivers
from django_redis_lock.protocol.calls import Call, Release, Renew, Steps
from django_redis_lock.protocol.lease import Lease, State, milliseconds
from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.support.threads import Background

logger = logging.getLogger("django_redis_lock")
RENEWALS = 3  # a lease is renewed after such a part of its length: a third
BATCH = 500  # how many leases one call renews: the server does nothing else while it runs a script
# In seconds:
VERIFY_AFTER = 0.25  # when the server is asked whether a lock that was handed off is still held
SHORTEST_CALL = 0.05  # what a call may take at least, however soon a lease ends
LONGEST_CALL = 5.0  # and at most, however long the leases and the socket timeout are
WITHDRAW_EVERY = 0.5  # before each sending of a withdrawal
EXIT = 1.0  # for which the end of the process waits for releases that could not be sent before

REASON_EXPIRED = "its lease expired, or an operator released it"
MAX_HOLD_OVER = "it was held for max_hold seconds"


class Entry:
    """A lease to renew or to verify, and when that is due (monotonic)."""

    __slots__ = ("due", "final", "lease", "lock", "name", "period", "server", "token")

    def __init__(self, lease: Lease, lock: Any, server: ServerRenewer, *, renew: bool) -> None:
        self.lease, self.lock = weakref.ref(lease), weakref.ref(lock)
        self.name, self.token, self.server = lease.name, lease.token, server
        self.final = False  # no renewal sets a later end any more
        self.period = lease.timeout / RENEWALS if renew and lease.timeout is not None else math.inf
        if lease.verify_by is None:
            self.due = lease.deadline - (RENEWALS - 1) * self.period
        else:
            self.due = monotonic() + min(VERIFY_AFTER, self.period)

    @property
    def renews(self) -> bool:
        return self.period < math.inf

    def wanted_ms(self, lease: Lease) -> int:
        if not self.renews:
            return 0  # which only looks at it
        return milliseconds(max(0.0, min(RENEWALS * self.period, lease.renew_until - monotonic())))

    def lost_at(self) -> float:
        """Return when the lock counts as lost if the server does not answer."""
        lease = self.lease()
        if lease is None:
            return math.inf
        if self.final:  # nothing is tried again for it, so a call may end a little later
            return lease.deadline + 0.5
        return lease.deadline if lease.verify_by is None else min(lease.deadline, lease.verify_by)


@dataclass(slots=True, eq=False)
class Withdrawal:
    """A release that did not reach the server, and when to send it again (monotonic)."""

    call: Release
    due: float
    until: float


def report_loss(backend: Any, lease: Lease, lock: Any, reason: str) -> Steps[None]:
    """Log and signal that a lock was lost, once."""
    if lease.lose(reason):
        logger.error("Lock %r was lost while it was held: %s", lease.name, reason)
        yield from backend.emit(signals.lock_lost, lease.name, lock=lock)


class Renewer:
    """Keeps every registered lease alive until it is discarded, lost or garbage-collected.

    A lease is renewed after a third of its length, with others of its server that are due soon. If
    the server can't be reached until it has expired, the lock is lost. A lock that was handed off
    is verified once, soon after it was acquired.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        # Each change of these is one operation, so callers and threads share no mutex.
        self.entries: dict[str, Entry] = {}  # by token
        self.servers: dict[tuple[Any, Hashable], ServerRenewer] = {}

    def add(self, lease: Lease, backend: Any, lock: Any, *, renew: bool = True) -> None:
        """Renew a lease from now on, or only verify it; references to it are weak."""
        server = self.server_of(backend, lease.name)
        entry = self.entries[lease.token] = Entry(lease, lock, server, renew=renew)
        if entry.due < server.wakes_at:
            server.wake(entry.due)

    def discard(self, lease: Lease) -> None:
        self.entries.pop(lease.token, None)

    def was_set(self, leases: Iterable[Lease], lease_ms: Iterable[int]) -> None:
        """Renew leases in time that their holder has set, or may have set, to some ms."""
        for lease, ms in zip(leases, lease_ms, strict=True):
            entry = self.entries.get(lease.token)
            if entry is not None and ms > 0:
                entry.due = min(entry.due, monotonic() + ms / 1000 / RENEWALS)
                if entry.due < entry.server.wakes_at:
                    entry.server.wake(entry.due)

    def withdraw(
        self, call: Release, backend: Any, seconds: float, *, at_once: bool = False
    ) -> None:
        """Send a call in the background until it arrives, or for some seconds."""
        now = monotonic()
        item = Withdrawal(call, now if at_once else now + WITHDRAW_EVERY, now + seconds)
        server = self.server_of(backend, call.name)
        server.withdrawals[item] = None
        if item.due < server.wakes_at:
            with suppress(RuntimeError):  # the process is ending: ``at_exit`` sends it
                server.wake(item.due)

    def at_exit(self) -> None:
        """Try once more to send what could not be sent, for a second at most."""
        deadline = monotonic() + EXIT
        owing = [server for server in [*self.servers.values()] if server.withdrawals]
        for server in owing:
            for item in [*server.withdrawals]:
                item.due = 0.0  # until it is tried
            with suppress(RuntimeError):
                server.wake(0.0)
        for server in owing:
            while any(item.due == 0.0 for item in [*server.withdrawals]) and monotonic() < deadline:
                if server.runs:
                    time.sleep(0.005)
                else:
                    server.work(deadline)

    def remove(self, entry: Entry) -> bool:
        """Stop renewing a lease; return whether it was renewed until now."""
        found = self.entries.pop(entry.token, None)
        if found is not None and found is not entry:  # it was added again
            self.entries.setdefault(entry.token, found)
        return found is entry

    def server_of(self, backend: Any, name: str) -> ServerRenewer:
        key = backend, backend.renewal_group(name)
        return self.servers.get(key) or self.servers.setdefault(key, ServerRenewer(self, key))


class ServerRenewer(Background):
    """Renews the leases on one server, and sends again what did not reach it."""

    def __init__(self, renewer: Renewer, key: tuple[Any, Hashable]) -> None:
        self._renewer, self._key = renewer, key
        self.backend, self._together = key
        self.withdrawals: dict[Withdrawal, None] = {}
        super().__init__(f"django-redis-lock-renewal-{self.backend.alias}")

    def wake(self, due: float) -> None:
        self._renewer.servers[self._key] = self
        super().wake(due)

    def ended(self) -> None:
        if self._renewer.servers.get(self._key) is self:
            del self._renewer.servers[self._key]

    def work(self, until: float = math.inf) -> float:
        """Renew what is due, or else send one withdrawal, ``until`` a moment (monotonic)."""
        try:
            self._work(until)
        except Exception:
            logger.exception("Could not renew leases; retrying")
        due: list[Entry | Withdrawal] = [*self.withdrawals, *self._entries()]
        return min((each.due for each in due), default=math.inf)

    def _work(self, until: float) -> None:
        now, entries = monotonic(), self._entries()
        if any(entry.due <= now for entry in entries):
            soon = [entry for entry in entries if entry.due - entry.period / 4 <= now]
            soon.sort(key=attrgetter("due"))
            lost_at = min(entry.lost_at() for entry in entries)
            for first in range(0, len(soon), BATCH):
                self.renew(soon[first : first + BATCH], self._ends(lost_at, until))
            return
        owed = min([*self.withdrawals], key=attrgetter("due"), default=None)
        if owed is not None and owed.due <= now:
            lost_at = min([entry.lost_at() for entry in entries], default=math.inf)
            self._send(owed, self._ends(lost_at, until))

    def _ends(self, lost_at: float, until: float) -> float:
        """Return when a call ends: long before the first lease does, to be tried again in time."""
        now = monotonic()
        return min(until, now + min(LONGEST_CALL, max(SHORTEST_CALL, (lost_at - now) * 2 / 3)))

    def _entries(self) -> list[Entry]:
        return [entry for entry in [*self._renewer.entries.values()] if entry.server is self]

    def renew(self, due: Sequence[Entry], until: float) -> None:
        """Renew leases in one call, which ends by ``until`` (monotonic)."""
        entries = self._renewer.entries
        left = [entry for entry in due if entries.get(entry.token) is entry]
        batch = [(entry, lease) for entry in left if (lease := self._lease_of(entry))]
        if not batch:
            return
        now = monotonic()
        for entry, _ in batch:  # unless the answer says otherwise
            entry.due = now + min(1.0, max(SHORTEST_CALL, (entry.lost_at() - now) / 4))
        versions = [None if lease.pending_updates else lease.version for _, lease in batch]
        wanted = [entry.wanted_ms(lease) for entry, lease in batch]
        holds = [(item.name, item.token, ms) for (item, _), ms in zip(batch, wanted, strict=True)]
        call = Renew(holds, at_least=True, until=until)
        try:
            answers = self.backend.run(_once(call))
        except LockError as error:
            self._failed(batch, error)
            return
        results = zip(batch, versions, wanted, answers, strict=True)
        for (entry, lease), version, ms, left_ms in results:
            if left_ms is None:  # too few servers of a quorum have answered
                if lease.passed:
                    self._lose(entry, lease, "too few servers answered in time")
            elif left_ms < -1:
                over = lease.renew_until <= call.sent_at
                self._lose(entry, lease, MAX_HOLD_OVER if over else REASON_EXPIRED, gone=True)
            else:
                # Otherwise its holder has released it, or sets it to something else.
                current = lease.version == version and entries.get(entry.token) is entry
                lease.renewed(left_ms, call.sent_at, current=current and entry.renews)
                self._release_again(lease)
                if not entry.renews:
                    self._renewer.remove(entry)
                elif current:
                    entry.final = ms < milliseconds(RENEWALS * entry.period)
                    entry.due = lease.deadline if entry.final else call.sent_at + entry.period

    def _lease_of(self, entry: Entry) -> Lease | None:
        """Return the lease to renew, ``None`` if this server does not renew it any more."""
        lease = entry.lease()
        if lease is None:
            if self._renewer.remove(entry) and entry.renews:
                logger.warning(
                    "The handle of lock %r was garbage-collected without release(); the lock is "
                    "free within %.1f s. Use a with statement, or keep a reference.",
                    entry.name,
                    RENEWALS * entry.period,
                )
        elif not entry.renews and (lease.passed or lease.verify_by is None):  # nothing to verify
            self._renewer.remove(entry)
        elif entry.final and lease.passed:
            self._lose(entry, lease, MAX_HOLD_OVER)
        elif self.backend.renewal_group(entry.name) != self._together:  # it has moved
            entry.server = self._renewer.server_of(self.backend, entry.name)
            entry.server.wake(entry.due)
        else:
            return lease
        return None

    def _failed(self, batch: Sequence[tuple[Entry, Lease]], error: LockError) -> None:
        now = monotonic()
        lost = [(entry, lease) for entry, lease in batch if entry.lost_at() <= now]
        if number := len(batch) - len(lost):
            logger.warning("Could not renew %d locks; retrying: %s", number, error)
        why = f"the server could not be reached in time: {error}".rstrip(".")
        for entry, lease in lost:
            self._lose(entry, lease, why)

    def _lose(self, entry: Entry, lease: Lease, reason: str, *, gone: bool = False) -> None:
        """Report a loss, unless its holder has released the lock; release what may not be gone."""
        if not self._renewer.remove(entry):
            return
        if not gone:
            self._give_back(lease)
        if lease.left_at is not None:  # a detach may have been carried out
            lease.lose()
        else:
            self.backend.run(report_loss(self.backend, lease, entry.lock(), reason))

    def _release_again(self, lease: Lease) -> None:
        """Release what was released before: a renewal may have come later, and claimed a grant."""
        if lease.state is State.RELEASED:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        call = Release(lease.name, lease.token, shared=lease.permit, patient=False)
        self._renewer.withdraw(call, self.backend, lease.longest)

    def _send(self, item: Withdrawal, until: float) -> None:
        item.call.until = until
        try:
            drivers.carry_out(self.backend, item.call)
        except LockUnavailable as error:
            now = monotonic()
            for each in [*self.withdrawals] if error.passing else [item]:
                each.due = max(each.due, now + WITHDRAW_EVERY)
            if now < item.until and item in self.withdrawals:
                del self.withdrawals[item]
                self.withdrawals[item] = None  # behind the others
                return
        except LockError as error:  # another program's key: there is nothing to give back
            logger.warning("Could not release a lock in the background: %s", error)
        self.withdrawals.pop(item, None)


def _once(call: Call) -> Steps[Any]:
    """Send a call, and don't try again: the thread does, with what else is due by then."""
    return (yield call)


renewer = Renewer()
atexit.register(renewer.at_exit)
