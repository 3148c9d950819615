"""A real SDK that holds spans and metrics in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from django_redis_lock.contrib.gauges import forget_readings
from django_redis_lock.contrib.opentelemetry import LockInstrumentor


class Telemetry:
    """Providers that keep the traces and metrics. Every span is sampled, whatever its parent."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.tracers.get_tracer("tests")

    def shutdown(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Return the spans that have ended, or those of a name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if name in ("", span.name)]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def metrics(self) -> dict[str, list[Any]]:
        """Collect; return the data points of each metric."""
        data: Any = self._reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """What is told while a test runs, of all that is sampled."""
    telemetry = Telemetry()
    forget_readings()
    LockInstrumentor().instrument(
        tracer_provider=telemetry.tracers, meter_provider=telemetry.meters
    )
    yield telemetry
    LockInstrumentor().uninstrument()
    telemetry.shutdown()
