"""Connects traces and metrics to the signals of locks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from django.dispatch import Signal
from opentelemetry import metrics, trace

from django_redis_lock import __version__, signals
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.metrics import LockMetrics
from django_redis_lock.contrib.opentelemetry.spans import ENDS, LockSpans

logger = logging.getLogger("django_redis_lock")


class LockInstrumentor:
    """Switches traces and metrics of locks on and off.

    All instances are one, as with the instrumentors of other libraries. Nothing that OpenTelemetry
    raises reaches the user of a lock: Django logs it.
    """

    _metrics: LockMetrics | None = None
    _receivers: ClassVar[list[tuple[Signal, Callable[..., None]]]] = []

    @property
    def is_instrumented(self) -> bool:
        """Whether it is switched on."""
        return LockInstrumentor._metrics is not None

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
        spans, metered = LockSpans(tracer), LockMetrics(meter)
        LockInstrumentor._metrics = metered
        LockInstrumentor._receivers = [
            (signals.lock_waiting, spans.wait),
            (signals.lock_acquired, spans.acquired),
            (signals.lock_acquired, metered.waited),
            (signals.lock_not_acquired, spans.not_acquired),
            (signals.lock_not_acquired, metered.waited),
            *((signal, spans.ended) for signal in ENDS),
            *((signal, metered.held) for signal in (signals.lock_released, signals.lock_detached)),
        ]
        for signal, receiver in LockInstrumentor._receivers:
            signal.connect(receiver, weak=False)

    def uninstrument(self) -> None:
        """Stop tracing and counting. If it is off already, nothing happens."""
        if LockInstrumentor._metrics is None:
            return
        LockInstrumentor._metrics.enabled = False
        LockInstrumentor._metrics = None
        for signal, receiver in LockInstrumentor._receivers:
            signal.disconnect(receiver)
