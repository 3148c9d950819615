"""What the held locks of all aliases amount to: the gauges of Prometheus and OpenTelemetry."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from time import monotonic

from django.db import connections

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.exceptions import InvalidLockBackend, LockError, LockUnavailable
from django_redis_lock.handler import locks
from django_redis_lock.operators import aliases, backlogs_of, queues_of, unheld_among
from django_redis_lock.protocol.records import Holder, is_renewed
from django_redis_lock.support.process import current_process

logger = logging.getLogger("django_redis_lock")

MOST_HOLDERS = 2000
"""The holders of at most this many held locks are read: those whose lease ends first."""
MOST_QUEUES = 100
"""The first waiter and the backlogs of at most this many queues are read: of the longest."""
SHARED_FOR = 1.0  # seconds for which all that read share what was read
PATIENCE = 3.0  # seconds from the begin of a reading for which callers wait for its end

MEANINGS = {  # the gauges of a group, and their descriptions
    "held": "Held locks and permits; each shared holder counts.",
    "limit": "Permits of semaphores that are held, or whose limit an operator has set.",
    "waiting": "Waiters for locks, parked tasks included.",
    "parked": "Parked Celery tasks.",
    "backlogs": "Backlogs of parked tasks, one per turn.",
    "oldest_wait": "Longest wait of the first waiter of a queue.",
    "oldest_hold": "Longest time that a lock has been held.",
    "lease_used": "Largest used share of a renewed lease; at 1 the lock is lost.",
}


@dataclass
class Held:
    groups: dict[str, dict[str, float]]
    holders_unread: int = 0
    queues_unread: int = 0


def read_gauges() -> list[tuple[BaseLockBackend, Held | None]]:
    """Return each valid backend with what is held, ``None`` if that is not known in time.

    All servers are read at once. One that does not answer delays only the first call.
    """
    readings = []
    for using in aliases():
        with suppress(InvalidLockBackend):  # as the system checks say
            backend, reading = locks[using], _latest.get(using)
            if reading is None or not reading.serves(backend):
                reading = _latest[using] = _Reading(backend)
            readings.append((backend, reading))
    return [(backend, reading.result()) for backend, reading in readings]


def read_held(backend: BaseLockBackend) -> Held:
    """Read the figures of a backend. Raises ``LockUnavailable``."""
    group = backend.operators.group
    known = {*backend.operators.groups.values(), OTHER}
    held = Held({each: dict.fromkeys(MEANINGS, 0) for each in known})  # 0 rather than absent
    names = backend.read_index()
    for name in names:
        held.groups[group(name)]["held"] += 1
    ending_first = deque(names, MOST_HOLDERS)
    held.holders_unread = len(names) - len(ending_first)
    limits, waited_for = _limits(backend)
    queues: dict[str, tuple[int, int]] = {}  # how many wait, and how many of them are parked
    for holder in backend.holders_of(ending_first):
        figures = held.groups[group(holder.name)]
        figures["oldest_hold"] = max(figures["oldest_hold"], holder.held_for or 0.0)
        figures["lease_used"] = max(figures["lease_used"], lease_used(holder))
        if holder.name in queues:
            figures["held"] += 1  # one more that shares it
        elif holder.limit is not None:
            limits.setdefault(holder.name, holder.limit)
        queues[holder.name] = holder.waiters or 0, holder.parked
    others = {*limits, *waited_for} - queues.keys()
    for one in unheld_among(backend, islice(others, MOST_HOLDERS)):
        queues[one.name] = one.waiters or 0, one.parked
    for name, limit in limits.items():
        held.groups[group(name)]["limit"] += limit
    for name, (waiters, parked) in queues.items():
        held.groups[group(name)]["waiting"] += waiters
        held.groups[group(name)]["parked"] += parked
    awaited = [name for name, (waiters, _) in queues.items() if waiters]
    longest = nlargest(MOST_QUEUES, awaited, key=queues.__getitem__)
    held.queues_unread = len(awaited) - len(longest) + max(0, len(others) - MOST_HOLDERS)
    for name in longest:
        figures = held.groups[group(name)]
        figures["backlogs"] += backlogs_of(backend, name).number if queues[name][1] else 0
        for waiter in backend.waiting(name, limit=1):
            figures["oldest_wait"] = max(figures["oldest_wait"], waiter.waited or 0.0)
    return held


_refusing: set[str] = set()


def _limits(backend: BaseLockBackend) -> tuple[dict[str, int], Iterable[str]]:
    """Return the limits that are set, and the names of queues, if the user may read both."""
    try:
        return {limit.name: limit.limit for limit in backend.limits()}, queues_of(backend)
    except LockUnavailable as error:
        if not error.refused:
            raise
        if backend.alias not in _refusing:
            _refusing.add(backend.alias)
            logger.info("Read gauges of LOCKS[%r] without queues: %s", backend.alias, error)
        return {}, ()


def lease_used(holder: Holder) -> float:
    """Return which share of a lease has passed, 0.0 for one that will not be renewed."""
    if not is_renewed(holder) or holder.lease is None or holder.ttl is None:
        return 0.0
    return min(1.0, max(0.0, 1.0 - holder.ttl / holder.lease))


reads: ContextVar[bool] = ContextVar("django_redis_lock_reads", default=False)
"""Whether this thread reads for gauges, whose failures are not counted as operations."""


class _Reading(threading.Thread):
    def __init__(self, backend: BaseLockBackend) -> None:
        super().__init__(name=f"django-redis-lock-gauges-{backend.alias}", daemon=True)
        self._backend, self._process = backend, current_process()
        self._began = monotonic()
        self._read: Held | None = None
        self.start()

    def serves(self, backend: BaseLockBackend) -> bool:
        """Whether it is of this backend, and still going on or at most a second old."""
        if self._backend is not backend or self._process is not current_process():
            return False
        return self.is_alive() or monotonic() - self._began < SHARED_FOR

    def result(self) -> Held | None:
        """Return what was read; ``None`` if it failed or takes longer than ``PATIENCE``."""
        self.join(max(0.0, self._began + PATIENCE - monotonic()))
        return self._read

    def run(self) -> None:
        reads.set(True)
        try:
            self._read = read_held(self._backend)
        except LockError as error:
            logger.info("Could not read the gauges of LOCKS[%r]: %s", self._backend.alias, error)
        except Exception:
            logger.exception("Could not read the gauges of LOCKS[%r]", self._backend.alias)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread


_latest: dict[str, _Reading] = {}
forget_readings = _latest.clear
