"""Counters and histograms, counted where the lock is used."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import Attributes, of_metric
from django_redis_lock.contrib.opentelemetry.providers import Provider
from django_redis_lock.primitives.lock import Lock

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: an uncontended lock takes less than the first, a report may hold one up to the last."""


class LockMetrics:
    """The instruments of a process, apart from the gauges."""

    def __init__(self, meter: Meter, provider: Provider) -> None:
        self._provider = provider
        self._wait = meter.create_histogram(
            names.WAIT_DURATION,
            unit="s",
            description="How long it took to acquire a lock, or to give up.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._hold = meter.create_histogram(
            names.HOLD_DURATION,
            unit="s",
            description="How long a lock was held.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=description)
            for name, unit, description in (
                (names.LOST, "{lock}", "Locks that a holder has lost."),
                (names.FORCE_RELEASED, "{lock}", "Locks taken from their holder by an operator."),
                (names.FREED, "{lock}", "Locks of dead tasks, freed by a Celery worker."),
                (names.UNAVAILABLE, "{operation}", "Operations that found no available server."),
                (names.TASKS_SKIPPED, "{task}", "Duplicates of Celery tasks that did not run."),
            )
        }

        self._known: dict[tuple[type, str, str, str], Attributes] = {}

    def waited(self, lock: Lock, seconds: float, outcome: str) -> None:
        """Record an attempt to acquire a lock."""
        if self._provider.records():
            self._wait.record(seconds, self._attributes(lock.backend, lock.name, outcome))

    def held(self, lock: Lock, seconds: float, outcome: str) -> None:
        """Record the end of a hold."""
        if self._provider.records():
            self._hold.record(seconds, self._attributes(lock.backend, lock.name, outcome))

    def _attributes(self, backend: BaseLockBackend, name: str, outcome: str) -> Attributes:
        key = type(backend), backend.alias, backend.operators.group(name), outcome
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = {**of_metric(backend, name), names.OUTCOME: outcome}
        return found

    def count(self, what: str, backend: BaseLockBackend, name: str) -> None:
        """Add one to the counter of a name."""
        self._counters[what].add(1, of_metric(backend, name))

    def skipped(self, attributes: Attributes) -> None:
        """Count a duplicate of a task."""
        self._counters[names.TASKS_SKIPPED].add(1, attributes)
