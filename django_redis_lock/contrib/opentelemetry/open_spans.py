"""Spans that were started and not ended yet, by the handle of their lock."""

from __future__ import annotations

import weakref
from collections import deque
from time import time_ns
from typing import Generic, TypeVar

from opentelemetry.trace import Span

from django_redis_lock.primitives.held import Held
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.process import forget_after_fork


class OpenSpan(weakref.ref[Held]):
    """A started span, and a weak reference to its handle."""

    __slots__ = ("holder", "key", "span")

    span: Span
    key: int
    holder: Holder | None
    """Who had the lock when the span was started."""


Kept = TypeVar("Kept", bound=Held)


class OpenSpans(Generic[Kept]):
    """The open spans of one kind; a handle has at most one.

    A handle may be given up without a signal: a wait is cancelled, or a hold passes on to another
    handle in a transaction. Then its span ends when the handle is collected. A collection can come
    at any moment, even within the SDK while it holds a mutex, so the span is only noted there.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forget the parent's spans, which the parent ends."""
        self._open: dict[int, OpenSpan] = {}
        self._given_up: deque[tuple[Span, int]] = deque()

    def put(self, lock: Kept, span: Span, holder: Holder | None = None) -> None:
        """Keep the span of a handle; an earlier one ends."""
        self.end_given_up()
        kept = OpenSpan(lock, self._collected)
        kept.span, kept.key, kept.holder = span, id(lock), holder
        before = self._open.pop(kept.key, None)
        self._open[kept.key] = kept
        if before is not None:
            before.span.end()

    def take(self, lock: Kept | None) -> OpenSpan | None:
        """Return the span of a handle, to be ended by the caller; ``None`` if it has none."""
        if not self._open and not self._given_up:
            return None
        self.end_given_up()
        return self._open.pop(id(lock), None)

    def end_given_up(self) -> None:
        """End the spans of handles that were collected."""
        while self._given_up:
            span, at = self._given_up.popleft()
            span.end(at)

    def _collected(self, kept: weakref.ref[Held]) -> None:
        assert isinstance(kept, OpenSpan)
        if self._open.get(kept.key) is kept:
            del self._open[kept.key]
            self._given_up.append((kept.span, time_ns()))
