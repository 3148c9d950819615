"""The SDK of a process, set up after the fork, which writes each span as a line of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

SPANS = "LOCK_TEST_SPANS"
"""The environment variable with the path of the file."""


class ToFile(SpanExporter):
    """Appends spans as JSON; each write is whole, whichever process makes it."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        text = "".join(span.to_json(indent=None) + "\n" for span in spans)
        with open(os.environ[SPANS], "ab", buffering=0) as file:
            file.write(text.encode())
        return SpanExportResult.SUCCESS


def set_up_tracing() -> None:
    """Set the provider of this process, with the thread of its own that a fork would lose."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=50))
    trace.set_tracer_provider(provider)
