"""Connects traces and metrics to the signals of locks and tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from django.dispatch import Signal
from opentelemetry import metrics, trace

from django_redis_lock import __version__, signals
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import of_holder, of_metric
from django_redis_lock.contrib.opentelemetry.gauges import LockGauges
from django_redis_lock.contrib.opentelemetry.metrics import LockMetrics
from django_redis_lock.contrib.opentelemetry.providers import Provider
from django_redis_lock.contrib.opentelemetry.spans import LockSpans, tell_skipped
from django_redis_lock.contrib.reading import this_thread
from django_redis_lock.handler import locks
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.records import Holder

logger = logging.getLogger("django_redis_lock")


class LockInstrumentor:
    """Switches traces and metrics of locks on and off.

    All instances are one, as with the instrumentors of other libraries. Nothing that OpenTelemetry
    raises reaches the user of a lock: Django logs it.
    """

    _connected: _Receivers | None = None

    @property
    def is_instrumented(self) -> bool:
        """Whether it is switched on."""
        return LockInstrumentor._connected is not None

    def instrument(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        """Trace and count locks from now on.

        Without providers it uses the global ones, which can also be set later. If it is on already,
        it logs a warning and changes nothing.
        """
        if self.is_instrumented:
            logger.warning("Locks are instrumented for OpenTelemetry already")
            return
        tracer = trace.get_tracer(names.SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(names.SCOPE, __version__, meter_provider)
        receivers = LockInstrumentor._connected = _Receivers(
            LockSpans(tracer, Provider(lambda: tracer_provider or trace.get_tracer_provider())),
            LockMetrics(meter, Provider(lambda: meter_provider or metrics.get_meter_provider())),
            LockGauges(meter),
        )
        for signal, receiver in receivers.pairs():
            signal.connect(receiver, weak=False)

    def uninstrument(self) -> None:
        """Stop tracing and counting. If it is off already, nothing happens."""
        receivers, LockInstrumentor._connected = LockInstrumentor._connected, None
        if receivers is None:
            return
        receivers.gauges.enabled = False
        for signal, receiver in receivers.pairs():
            signal.disconnect(receiver)


class _Receivers:
    """The receivers of the signals."""

    def __init__(self, spans: LockSpans, metrics: LockMetrics, gauges: LockGauges) -> None:
        self.spans, self.metrics, self.gauges = spans, metrics, gauges

    def pairs(self) -> Iterator[tuple[Signal, Callable[..., None]]]:
        """Yield each signal with its receiver."""
        yield signals.lock_waiting, self.on_waiting
        yield signals.lock_acquired, self.on_acquired
        yield signals.lock_not_acquired, self.on_not_acquired
        yield signals.lock_released, self.on_released
        yield signals.lock_detached, self.on_detached
        yield signals.lock_lost, self.on_lost
        yield signals.lock_force_released, self.on_force_released
        yield signals.lock_freed, self.on_freed
        yield signals.lock_unavailable, self.on_unavailable
        if find_spec("celery") is not None:
            from django_redis_lock.celery.conflicts import task_skipped

            yield task_skipped, self.on_task_skipped

    def on_waiting(self, lock: Lock, **kwargs: Any) -> None:
        self.spans.wait(lock)

    @signals.never_blocks
    def on_acquired(self, lock: Lock, waited: float, **kwargs: Any) -> None:
        self.spans.acquired(lock)
        self.metrics.waited(lock, waited, "acquired")

    def on_not_acquired(self, lock: Lock, waited: float, reason: str, **kwargs: Any) -> None:
        self.spans.not_acquired(lock, reason, waited)
        self.metrics.waited(lock, waited, reason)

    @signals.never_blocks
    def on_released(self, lock: Lock, held_for: float, **kwargs: Any) -> None:
        self.spans.ended(lock, "released")
        self.metrics.held(lock, held_for, "released")

    @signals.never_blocks
    def on_detached(self, lock: Lock, held_for: float, **kwargs: Any) -> None:
        self.spans.ended(lock, "detached")
        self.metrics.held(lock, held_for, "detached")

    @signals.never_blocks
    def on_lost(self, using: str, name: str, lock: Lock | None, **kwargs: Any) -> None:
        self.spans.ended(lock, "lost")
        self.metrics.count(names.LOST, locks[using], name)

    @signals.never_blocks
    def on_force_released(self, using: str, name: str, **kwargs: Any) -> None:
        self.metrics.count(names.FORCE_RELEASED, locks[using], name)

    @signals.never_blocks
    def on_freed(self, using: str, name: str, **kwargs: Any) -> None:
        self.metrics.count(names.FREED, locks[using], name)

    @signals.never_blocks
    def on_unavailable(self, using: str, name: str, **kwargs: Any) -> None:
        if not this_thread.reads:
            self.metrics.count(names.UNAVAILABLE, locks[using], name)

    def on_task_skipped(
        self,
        sender: Any,
        task_id: str | None,
        key: str,
        holder: Holder | None,
        policy: str,
        **kwargs: Any,
    ) -> None:
        from django_redis_lock.celery.guard import GUARD

        backend = locks[getattr(sender, GUARD).options.using]
        told = {**of_metric(backend, key), names.TASK: sender.name, names.POLICY: policy}
        self.metrics.skipped(told)
        tell_skipped(sender, task_id, key, told if holder is None else told | of_holder(holder))
