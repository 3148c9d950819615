"""Histograms of waits and holds, and gauges of what the servers hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.dispatch import Signal
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_redis_lock.contrib.gauges import MEANINGS, read_gauges
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.spans import ENDS
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.signals import never_blocks

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: an uncontended lock takes less than the first, a report may hold one up to the last."""
HISTOGRAMS = {
    names.WAIT_DURATION: "How long it took to acquire a lock, or to give up.",
    names.HOLD_DURATION: "How long a lock was held.",
}
GAUGES = {
    "held": (names.HELD, "{lock}"),
    "waiting": (names.WAITING, "{waiter}"),
    "oldest_hold": (names.OLDEST_HOLD, "s"),
    "oldest_wait": (names.OLDEST_WAIT, "s"),
    "lease_used": (names.LEASE_USED, "1"),
}
"""The name and the unit of the gauge for each of the ``Figures`` of a group."""


class LockMetrics:
    """The instruments of a process.

    The gauges are of all processes together, so each process that collects reports the same.
    """

    def __init__(self, meter: Meter) -> None:
        self.enabled = True
        self._wait, self._hold = (
            meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=BOUNDARIES
            )
            for name, text in HISTOGRAMS.items()
        )
        for field, (name, unit) in GAUGES.items():
            callbacks = [self._callback(field)]
            text = MEANINGS[field]
            meter.create_observable_gauge(name, callbacks, unit=unit, description=text)

    @never_blocks
    def waited(self, lock: Lock, waited: float, reason: str = "acquired", **kwargs: Any) -> None:
        """Record an attempt to acquire a lock."""
        self._wait.record(waited, _attributes(lock, reason))

    @never_blocks
    def held(self, signal: Signal, lock: Lock, held_for: float, **kwargs: Any) -> None:
        """Record the end of a hold."""
        self._hold.record(held_for, _attributes(lock, ENDS[signal]))

    def _callback(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for backend, held in read_gauges() if self.enabled else ():
                for group, figures in held.groups.items() if held is not None else ():
                    attributes = names.attributes_of(backend, group)
                    yield Observation(getattr(figures, field), attributes)

        return observe


def _attributes(lock: Lock, outcome: str) -> names.Attributes:
    """Return attributes with few values: the lock's group, not its name."""
    group = lock.backend.operators.group(lock.name)
    return {**names.attributes_of(lock.backend, group), names.OUTCOME: outcome}
