"""Gauges of what the servers hold, read when metrics are collected.

They are of all processes together, so each process that collects reports the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import of_group
from django_redis_lock.contrib.reading import reader

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


class LockGauges:
    """The gauges of a process."""

    def __init__(self, meter: Meter) -> None:
        self.enabled = True
        for field, (name, unit, description) in GAUGES.items():
            callback = self._callback(field)
            meter.create_observable_gauge(name, [callback], unit=unit, description=description)

    def _callback(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for backend, held in reader.read() if self.enabled else ():
                for group, figures in held.groups.items() if held is not None else ():
                    yield Observation(getattr(figures, field), of_group(backend, group))

        return observe
