"""Gauges of what the server holds, read when metrics are collected.

They are of all processes together, so each process that collects reports the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import islice
from time import monotonic

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.index import names_of
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import Attributes, of_metric
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")

MOST_LOCKS = 1000
"""How many locks of an alias are read whole. Of the others the index tells that they are held."""
MOST_QUEUES = 50
"""How many queues of an alias are asked for their longest waiter: the longest queues."""
PATIENCE = 2.0
"""Seconds that a collection waits for the servers."""
FRESH = 1.0
"""Seconds for which what was read serves the gauges of one collection."""


@dataclass
class Figures:
    """The gauges of one group of an alias, in the order of ``GAUGES``."""

    held: int = 0
    waiting: int = 0
    oldest_hold: float = 0.0
    oldest_wait: float = 0.0
    lease_used: float = 0.0


GAUGES = (
    (names.HELD, "{lock}", "Held locks."),
    (names.WAITING, "{waiter}", "Waiters in the queues of held locks."),
    (names.OLDEST_HOLD, "s", "How long the oldest hold has lasted."),
    (names.OLDEST_WAIT, "s", "How long the first in a queue has waited."),
    (names.LEASE_USED, "1", "The part of its lease that a lock has used: 1 when it expires."),
)
Reading = list[tuple[Attributes, Figures]]


class LockGauges:
    """The gauges of a process.

    They are read in a thread of their own, so that a server that does not answer holds a collection
    up no longer than ``PATIENCE``. Until it has answered, later collections do not ask it.
    """

    def __init__(self, meter: Meter) -> None:
        self.enabled = True
        self.after_fork()
        forget_after_fork(self)
        for place, (name, unit, description) in enumerate(GAUGES):
            callback = self._callback(place)
            meter.create_observable_gauge(name, [callback], unit=unit, description=description)

    def after_fork(self) -> None:
        """Begin anew in a child, which does not have the thread of its parent."""
        self._mutex = threading.Lock()
        self._read_at: float | None = None
        self._reading: Reading = []
        self._reader: threading.Thread | None = None

    def _callback(self, place: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for attributes, figures in self._current() if self.enabled else ():
                yield Observation(astuple(figures)[place], attributes)

        return observe

    def _current(self) -> Reading:
        with self._mutex:
            if self._read_at is None or monotonic() - self._read_at > FRESH:
                self._read_at = monotonic()
                self._reading = self._read_in_time()
            return self._reading

    def _read_in_time(self) -> Reading:
        if self._reader is not None and self._reader.is_alive():
            return []
        found: list[Reading] = []
        self._reader = threading.Thread(
            target=lambda: found.append(read_all()), name="django-redis-lock-gauges", daemon=True
        )
        self._reader.start()
        self._reader.join(PATIENCE)
        return found[0] if found else []


def read_all() -> Reading:
    """Read the gauges of all aliases, without those whose server is unavailable."""
    reading: Reading = []
    for alias in locks:
        try:
            reading += read(locks[alias])
        except (LockError, InvalidLockBackend) as error:
            logger.info("LOCKS[%r] has no gauges now: %s", alias, error)
    return reading


def read(backend: BaseLockBackend) -> Reading:
    """Read the gauges of an alias from its index, and from a bounded number of its locks."""
    group = backend.operators.group
    # Groups without held locks count too: a gauge that vanishes keeps its last value for a while.
    figures = {each: Figures() for each in (*backend.operators.groups.values(), OTHER)}
    held = [*names_of(backend.read_index())]
    for name in held:
        figures[group(name)].held += 1
    queues: list[tuple[int, str]] = []
    for holder in backend.holders_of(islice(held, MOST_LOCKS)):
        of_group = figures[group(holder.name)]
        of_group.oldest_hold = max(of_group.oldest_hold, holder.held_for or 0.0)
        of_group.lease_used = max(of_group.lease_used, _lease_used(holder))
        if holder.waiters:
            of_group.waiting += holder.waiters
            queues.append((holder.waiters, holder.name))
    for _, name in sorted(queues, reverse=True)[:MOST_QUEUES]:
        for waiter in backend.waiting(name, limit=1):
            of_group = figures[group(name)]
            of_group.oldest_wait = max(of_group.oldest_wait, waiter.waited or 0.0)
    return [({**of_metric(backend, ""), names.GROUP: name}, item) for name, item in figures.items()]


def _lease_used(holder: Holder) -> float:
    """Return the part of a lease that has passed; 0 for one without end, or if it is unknown."""
    if holder.ttl is None:
        return 0.0
    whole = holder.lease
    if whole is None:
        if holder.held_for is None:
            return 0.0
        whole = holder.held_for + holder.ttl
    return min(1.0, max(0.0, 1 - holder.ttl / whole)) if whole else 1.0
