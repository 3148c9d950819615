"""Gauges of what the servers hold, read when metrics are collected.

They are of all processes together, so each process that collects reports the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from django.db import connections
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_redis_lock.contrib.held import Figures, Held, read_held
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import Attributes, of_group
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.support.process import forget_after_fork

logger = logging.getLogger("django_redis_lock")

PATIENCE = 2.0
"""Seconds that a collection waits for the servers, all of which are read at once."""
FRESH = 1.0
"""Seconds for which what was read serves the gauges of one collection."""

GAUGES = {
    "held": (names.HELD, "{lock}", "Held locks."),
    "waiting": (names.WAITING, "{waiter}", "Waiters in the queues of held locks."),
    "oldest_hold": (names.OLDEST_HOLD, "s", "How long the oldest hold has lasted."),
    "oldest_wait": (names.OLDEST_WAIT, "s", "How long the first in a queue has waited."),
    "lease_used": (
        names.LEASE_USED,
        "1",
        "The largest share of its lease that a renewed lock has used up; at 1 it is lost.",
    ),
}
"""The name, the unit and the description of the gauge for each of the ``Figures`` of a group."""
Reading = list[tuple[Attributes, Figures]]


class _Look(threading.Thread):
    """Reads the held locks of an alias."""

    def __init__(self, using: str) -> None:
        super().__init__(name=f"django-redis-lock-gauges-{using}", daemon=True)
        self._using = using
        self.found: Held | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = read_held(locks[self._using])
        except (LockError, InvalidLockBackend) as error:
            logger.info("LOCKS[%r] has no gauges now: %s", self._using, error)
        except Exception:
            logger.exception("The held locks of LOCKS[%r] could not be counted", self._using)
        finally:
            connections.close_all()  # a signal receiver may have opened one in this thread


class LockGauges:
    """The gauges of a process.

    Each server is read in a thread of its own. One that does not answer holds a collection up no
    longer than ``PATIENCE``, and the next ones not at all until it has answered.
    """

    def __init__(self, meter: Meter) -> None:
        self.enabled = True
        self.after_fork()
        forget_after_fork(self)
        for field, (name, unit, description) in GAUGES.items():
            callback = self._callback(field)
            meter.create_observable_gauge(name, [callback], unit=unit, description=description)

    def after_fork(self) -> None:
        """Start over: the threads that read are the parent's."""
        self._mutex = threading.Lock()
        self._looks: dict[str, _Look] = {}
        self._reading: Reading = []
        self._read_at: float | None = None

    def _callback(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for attributes, figures in self._current() if self.enabled else ():
                yield Observation(getattr(figures, field), attributes)

        return observe

    def _current(self) -> Reading:
        with self._mutex:
            if self._read_at is None or monotonic() - self._read_at > FRESH:
                self._reading = self._read()
                self._read_at = monotonic()
            return self._reading

    def _read(self) -> Reading:
        looks = {}
        for using in locks:
            before = self._looks.get(using)
            if before is None or not before.is_alive():
                looks[using] = self._looks[using] = _Look(using)
        until = monotonic() + PATIENCE
        reading: Reading = []
        for using, look in looks.items():
            look.join(max(0.0, until - monotonic()))
            held = look.found
            if held is not None:
                backend = locks[using]
                reading += [(of_group(backend, group), item) for group, item in held.groups.items()]
        return reading
