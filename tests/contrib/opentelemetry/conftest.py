"""A real SDK that keeps spans and metrics in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redis_lock.contrib.gauges import forget_readings
from django_redis_lock.contrib.opentelemetry import LockInstrumentor
from tests.contrib.opentelemetry.telemetry import Telemetry


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
