"""Spans of waits and holds.

No span is made the current one. A lock can be released by another thread or asyncio task than the
one that acquired it, and neither must find a foreign context then. Each span is a child of what was
current when it was started.
"""

from __future__ import annotations

from contextlib import suppress
from time import time_ns
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode, Tracer, get_current_span

from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.attributes import (
    Attributes,
    of_holder,
    of_server,
    of_span,
)
from django_redis_lock.contrib.opentelemetry.open_spans import OpenSpans
from django_redis_lock.contrib.opentelemetry.providers import Provider
from django_redis_lock.exceptions import LockError
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.protocol.records import Holder

ERRORS = ("timeout", "unavailable", "lost")
"""Outcomes that make a span an error. A caller that does not want to wait expects ``busy``."""


class LockSpans:
    """Starts and ends the spans of all locks of a process."""

    def __init__(self, tracer: Tracer, provider: Provider) -> None:
        self._tracer = tracer
        self._provider = provider
        self._waits = OpenSpans[Lock]()
        self._holds = OpenSpans[Lock]()

    def wait(self, lock: Lock) -> None:
        """A wait begins: start its span, and ask who has the lock."""
        if self._records_nothing():
            return
        span = self._tracer.start_span(names.WAIT)
        if span.is_recording():
            _describe_wait(span, lock)
            self._waits.put(lock, span, _holder_of(lock))

    def acquired(self, lock: Lock) -> None:
        """End the wait, if there was one, and start the hold."""
        if not self._provider.records():
            return
        waiting = self._waits.take(lock)
        if waiting is not None:
            holder = waiting.holder
            if holder is not None and holder.token_id != lock.token_id:
                waiting.span.set_attributes(of_holder(holder))
            _end(waiting.span, "acquired")
        if self._records_nothing():
            return
        span = self._tracer.start_span(names.HOLD)
        if span.is_recording():
            span.set_attributes({**of_span(lock.backend, lock.name), names.FENCE: lock.fence})
            self._holds.put(lock, span)

    def not_acquired(self, lock: Lock, reason: str, waited: float) -> None:
        """End the wait; if there was none, write a span for it afterwards."""
        waiting = self._waits.take(lock)
        if waiting is not None:
            span, holder = waiting.span, waiting.holder
        elif self._records_nothing():
            return
        else:
            span = self._tracer.start_span(names.WAIT, start_time=time_ns() - int(waited * 1e9))
            if not span.is_recording():
                return
            _describe_wait(span, lock)
            holder = None if reason == "unavailable" else _holder_of(lock)
        if holder is not None:
            span.set_attributes(of_holder(holder))
        _end(span, reason)

    def ended(self, lock: Lock | None, outcome: str) -> None:
        """End the hold."""
        if not self._provider.records():
            return
        held = self._holds.take(lock)
        if held is not None:
            _end(held.span, outcome)

    def _records_nothing(self) -> bool:
        """Whether no span has to be begun: without an SDK, or in a trace that is not sampled."""
        if not self._provider.records():
            return True
        context = get_current_span().get_span_context()
        return context.is_valid and not context.trace_flags.sampled


def tell_skipped(task: Any, task_id: str | None, key: str, attributes: Attributes) -> None:
    """Tell the current span that a duplicate was skipped.

    In the worker that is the span of the duplicate's own run, which gets attributes. A sender may
    send several tasks within one span, which gets an event for each.
    """
    span = get_current_span()
    if task_id is not None and task.request.id == task_id:
        span.set_attributes({**attributes, names.NAME: key, names.OUTCOME: "skipped"})
    else:
        span.add_event(names.SKIPPED, {**attributes, names.NAME: key})


def _describe_wait(span: Span, lock: Lock) -> None:
    backend = lock.backend
    span.set_attributes(of_span(backend, lock.name) | of_server(backend))


def _holder_of(lock: Lock) -> Holder | None:
    """Ask the server who has a lock, in one round trip."""
    with suppress(LockError):
        return lock.backend.holder(lock.name)
    return None


def _end(span: Span, outcome: str) -> None:
    span.set_attribute(names.OUTCOME, outcome)
    if outcome in ERRORS:
        span.set_attribute(names.ERROR_TYPE, outcome)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
