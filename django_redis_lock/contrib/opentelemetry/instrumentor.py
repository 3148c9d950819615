"""Connects traces and metrics to the signals of locks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal
from opentelemetry import metrics, trace

from django_redis_lock import __version__, signals
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.metrics import LockMetrics
from django_redis_lock.contrib.opentelemetry.spans import LockSpans
from django_redis_lock.primitives.lock import Lock

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
        LockInstrumentor._connected = _Receivers(LockSpans(tracer), LockMetrics(meter))
        for signal, receiver in LockInstrumentor._connected.pairs:
            signal.connect(receiver, weak=False)

    def uninstrument(self) -> None:
        """Stop tracing and counting. If it is off already, nothing happens."""
        receivers, LockInstrumentor._connected = LockInstrumentor._connected, None
        if receivers is None:
            return
        receivers.metrics.enabled = False
        for signal, receiver in receivers.pairs:
            signal.disconnect(receiver)


class _Receivers:
    """The receivers of the signals."""

    def __init__(self, spans: LockSpans, metrics: LockMetrics) -> None:
        self.spans, self.metrics = spans, metrics
        self.pairs: list[tuple[Signal, Callable[..., None]]] = [
            (signals.lock_waiting, self.on_waiting),
            (signals.lock_acquired, self.on_acquired),
            (signals.lock_not_acquired, self.on_not_acquired),
            (signals.lock_released, self.on_released),
            (signals.lock_detached, self.on_detached),
            (signals.lock_lost, self.on_lost),
        ]

    @signals.never_blocks
    def on_waiting(self, lock: Lock, **kwargs: Any) -> None:
        self.spans.wait(lock)

    @signals.never_blocks
    def on_acquired(self, lock: Lock, waited: float, **kwargs: Any) -> None:
        self.spans.acquired(lock)
        self.metrics.waited(lock, waited, "acquired")

    @signals.never_blocks
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
    def on_lost(self, lock: Lock | None, **kwargs: Any) -> None:
        self.spans.ended(lock, "lost")
