"""Traces and metrics of locks for OpenTelemetry, from their signals.

Add ``"django_redis_lock.contrib.opentelemetry"`` to ``INSTALLED_APPS``, or call
``LockInstrumentor().instrument()``.

No span is made the current one: a lock can be released by another thread or asyncio task than the
one that acquired it. Each span is a child of what was current when it was started.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from time import time_ns
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Span, Status, StatusCode
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise ImproperlyConfigured(
        "django_redis_lock.contrib.opentelemetry needs opentelemetry-api. Install it with "
        "pip install 'django-redis-lock[opentelemetry]'."
    ) from error

from django_redis_lock import __version__, signals
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.contrib.gauges import MEANINGS, read_gauges
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.process import forget_after_fork

__all__ = ["LockInstrumentor"]

logger = logging.getLogger("django_redis_lock")

# The names of spans and attributes, which dashboards rely on.
WAIT = "lock wait"
HOLD = "lock hold"
NAME = "django_redis_lock.name"
ALIAS = "django_redis_lock.alias"
BACKEND = "django_redis_lock.backend"
GROUP = "django_redis_lock.group"
OUTCOME = "django_redis_lock.outcome"
FENCE = "django_redis_lock.fence"
ERROR_TYPE = "error.type"

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: an uncontended lock takes less than the first, a report may hold one up to the last."""
GAUGES = {  # the name and the unit of the gauge for each of the figures of a group
    "held": ("django_redis_lock.held", "{lock}"),
    "limit": ("django_redis_lock.limit", "{permit}"),
    "waiting": ("django_redis_lock.waiting", "{waiter}"),
    "parked": ("django_redis_lock.parked", "{task}"),
    "backlogs": ("django_redis_lock.backlogs", "{backlog}"),
    "oldest_hold": ("django_redis_lock.hold.oldest", "s"),
    "oldest_wait": ("django_redis_lock.wait.oldest", "s"),
    "lease_used": ("django_redis_lock.lease.used", "1"),
}

ERRORS = ("timeout", "unavailable", "lost")
"""Outcomes that make a span an error. Who does not want to wait expects ``busy`` and ``full``."""

ENDS: dict[Signal, str] = {  # the outcome of a hold that ends with a signal
    signals.lock_released: "released",
    signals.lock_detached: "detached",
    signals.lock_lost: "lost",
}


class LockInstrumentor:
    """Switch traces and metrics of locks on and off.

    All instances share one state, as with the instrumentors of other libraries. An error in
    OpenTelemetry never reaches the caller of a lock: Django logs it.
    """

    _instruments: _Instruments | None = None

    @property
    def is_instrumented(self) -> bool:
        """Whether it is switched on."""
        return LockInstrumentor._instruments is not None

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
            logger.warning("Ignored instrument(): locks are already instrumented for OpenTelemetry")
            return
        made = _Instruments(
            trace.get_tracer("django_redis_lock", __version__, tracer_provider),
            metrics.get_meter("django_redis_lock", __version__, meter_provider),
        )
        LockInstrumentor._instruments = made
        for signal, receiver in made.receivers.items():
            signal.connect(receiver, weak=False)

    def uninstrument(self) -> None:
        """Stop tracing and counting. If it is off already, nothing happens."""
        if made := LockInstrumentor._instruments:
            LockInstrumentor._instruments = None
            for signal, receiver in made.receivers.items():
                signal.disconnect(receiver)


class _Instruments:
    """What the signals of a process are recorded with.

    The gauges are of all processes together, so each process that collects reports the same.
    """

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._waits = _OpenSpans()
        self._holds = _OpenSpans()
        histogram = partial(
            meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=BOUNDARIES
        )
        about = "Time to acquire a lock, or to give up."
        self._waited = histogram("django_redis_lock.wait.duration", description=about)
        about = "Time that a lock was held."
        self._held = histogram("django_redis_lock.hold.duration", description=about)
        for field, (name, unit) in GAUGES.items():
            meter.create_observable_gauge(
                name, [partial(self._observe, field)], unit=unit, description=MEANINGS[field]
            )
        self.receivers: dict[Signal, Callable[..., None]] = {
            signals.lock_waiting: self.waiting,
            signals.lock_acquired: self.acquired,
            signals.lock_not_acquired: self.not_acquired,
            **dict.fromkeys(ENDS, self.ended),
        }

    @signals.never_blocks
    def waiting(self, lock: Lock, **kwargs: Any) -> None:
        if span := self._begin(WAIT, lock):
            self._waits.put(lock, span)

    @signals.never_blocks
    def acquired(self, lock: Lock, waited: float, **kwargs: Any) -> None:
        self._waited.record(waited, {**_attributes(lock), OUTCOME: "acquired"})
        if waiting := self._waits.take(lock):
            _end(waiting, "acquired")
        if span := self._begin(HOLD, lock):
            span.set_attribute(FENCE, lock.fence)
            self._holds.put(lock, span)

    @signals.never_blocks
    def not_acquired(self, lock: Lock, reason: str, waited: float, **kwargs: Any) -> None:
        """End the span of the wait; if there was none, write one afterwards."""
        self._waited.record(waited, {**_attributes(lock), OUTCOME: reason})
        began = time_ns() - int(waited * 1e9)
        if span := self._waits.take(lock) or self._begin(WAIT, lock, began):
            _end(span, reason)

    @signals.never_blocks
    def ended(
        self, signal: Signal, lock: Lock | None, held_for: float | None = None, **kwargs: Any
    ) -> None:
        if lock is not None and held_for is not None:  # not lost
            self._held.record(held_for, {**_attributes(lock), OUTCOME: ENDS[signal]})
        if span := self._holds.take(lock):
            _end(span, ENDS[signal])

    def _begin(self, name: str, lock: Lock, began: int | None = None) -> Span | None:
        """Start a span; return ``None`` without an SDK, or in a trace that is not sampled."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid and not context.trace_flags.sampled:
            return None
        span = self._tracer.start_span(name, start_time=began)
        if not span.is_recording():
            return None
        span.set_attributes({**_attributes(lock), NAME: lock.name})
        return span

    def _observe(self, field: str, options: object) -> Iterator[metrics.Observation]:
        on = LockInstrumentor._instruments is self  # an instrument can't be taken back
        for backend, held in read_gauges() if on else ():
            for group, figures in held.groups.items() if held is not None else ():
                yield metrics.Observation(figures[field], _attributes_of(backend, group))


def _end(span: Span, outcome: str) -> None:
    span.set_attribute(OUTCOME, outcome)
    if outcome in ERRORS:
        span.set_attribute(ERROR_TYPE, outcome)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


class _OpenSpans:
    """The spans of one kind that were started and not ended yet; a handle has at most one.

    The span of a handle that is given up without a signal, as by a wait that is cancelled, ends
    when the handle is collected. That may be while the SDK holds a mutex, so it is only noted then.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the parent's spans, which the parent ends."""
        self._open: dict[int, tuple[weakref.ref[Lock], Span]] = {}
        self._given_up: deque[tuple[Span, int]] = deque()

    def put(self, lock: Lock, span: Span) -> None:
        """Store the span of a handle; an earlier one ends."""
        if before := self.take(lock):
            before.end()
        key = id(lock)

        def collected(reference: weakref.ref[Lock]) -> None:
            if key in self._open and self._open[key][0] is reference:
                del self._open[key]
                self._given_up.append((span, time_ns()))

        self._open[key] = weakref.ref(lock, collected), span

    def take(self, lock: Lock | None) -> Span | None:
        """Return the span of a handle, to be ended by the caller; ``None`` if it has none."""
        while self._given_up:
            span, at = self._given_up.popleft()
            span.end(at)
        return self._open.pop(id(lock), (None, None))[1]


def _attributes(lock: Lock) -> dict[str, AttributeValue]:
    """Return attributes with few values: the lock's group, not its name."""
    return _attributes_of(lock.backend, lock.backend.operators.group(lock.name))


def _attributes_of(backend: BaseLockBackend, group: str) -> dict[str, AttributeValue]:
    return {ALIAS: backend.alias, BACKEND: type(backend).__name__, GROUP: group}
