"""Spans of waits and holds.

No span is made the current one. A lock can be released by another thread or asyncio task than the
one that acquired it, and neither must find a foreign context then. Each span is a child of what was
current when it was started.
"""

from __future__ import annotations

import weakref
from collections import deque
from time import time_ns
from typing import Any

from django.dispatch import Signal
from opentelemetry.trace import Span, Status, StatusCode, Tracer, get_current_span

from django_redis_lock import signals
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.primitives.held import Held
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.process import forget_after_fork

ERRORS = ("timeout", "unavailable", "lost")
"""Outcomes that make a span an error. A caller that does not want to wait expects ``busy``."""

ENDS: dict[Signal, str] = {
    signals.lock_released: "released",
    signals.lock_detached: "detached",
    signals.lock_lost: "lost",
}
"""The outcome of a hold that ends with a signal."""


class LockSpans:
    """Starts and ends the spans of all locks of a process, as signals tell."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._waits = _OpenSpans()
        self._holds = _OpenSpans()

    @signals.never_blocks
    def wait(self, lock: Lock, **kwargs: Any) -> None:
        """A wait begins."""
        if span := self._begin(names.WAIT, lock):
            self._waits.put(lock, span)

    @signals.never_blocks
    def acquired(self, lock: Lock, **kwargs: Any) -> None:
        """End the wait, if there was one, and start the hold."""
        if waiting := self._waits.take(lock):
            _end(waiting, "acquired")
        if span := self._begin(names.HOLD, lock):
            span.set_attribute(names.FENCE, lock.fence)
            self._holds.put(lock, span)

    @signals.never_blocks
    def not_acquired(self, lock: Lock, reason: str, waited: float, **kwargs: Any) -> None:
        """End the wait; if there was none, write a span for it afterwards."""
        began = time_ns() - int(waited * 1e9)
        if span := self._waits.take(lock) or self._begin(names.WAIT, lock, began):
            _end(span, reason)

    @signals.never_blocks
    def ended(self, signal: Signal, lock: Lock | None, **kwargs: Any) -> None:
        """End the hold."""
        if held := self._holds.take(lock):
            _end(held, ENDS[signal])

    def _begin(self, name: str, lock: Lock, began: int | None = None) -> Span | None:
        """Start a span; return ``None`` without an SDK, or in a trace that is not sampled."""
        context = get_current_span().get_span_context()
        if context.is_valid and not context.trace_flags.sampled:
            return None
        span = self._tracer.start_span(name, start_time=began)
        if not span.is_recording():
            return None
        backend = lock.backend
        group = backend.operators.group(lock.name)
        span.set_attributes({**names.attributes_of(backend, group), names.NAME: lock.name})
        return span


def _end(span: Span, outcome: str) -> None:
    span.set_attribute(names.OUTCOME, outcome)
    if outcome in ERRORS:
        span.set_attribute(names.ERROR_TYPE, outcome)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


class _OpenSpans:
    """The spans of one kind that were started and not ended yet; a handle has at most one.

    A handle may be given up without a signal: a wait is cancelled, or a hold passes on to another
    handle in a transaction. Then its span ends when the handle is collected. A collection can come
    at any moment, even within the SDK while it holds a mutex, so the span is only noted there.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the parent's spans, which the parent ends."""
        self._open: dict[int, tuple[weakref.ref[Held], Span]] = {}
        self._given_up: deque[tuple[Span, int]] = deque()

    def put(self, lock: Held, span: Span) -> None:
        """Keep the span of a handle; an earlier one ends."""
        if before := self.take(lock):
            before.end()
        key = id(lock)

        def collected(reference: weakref.ref[Held]) -> None:
            if key in self._open and self._open[key][0] is reference:
                del self._open[key]
                self._given_up.append((span, time_ns()))

        self._open[key] = weakref.ref(lock, collected), span

    def take(self, lock: Held | None) -> Span | None:
        """Return the span of a handle, to be ended by the caller; ``None`` if it has none."""
        while self._given_up:
            span, at = self._given_up.popleft()
            span.end(at)
        _, kept = self._open.pop(id(lock), (None, None))
        return kept
