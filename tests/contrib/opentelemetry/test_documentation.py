"""The tables of spans, attributes and metrics, compared with the code."""

from __future__ import annotations

import re
from typing import Any

from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableGauge

from django_redis_lock.contrib import held, reading
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.contrib.opentelemetry.gauges import LockGauges
from django_redis_lock.contrib.opentelemetry.metrics import LockMetrics
from django_redis_lock.contrib.opentelemetry.providers import Provider
from tests.tools.docs import DOCS, table

PAGE = DOCS / "how-to/traces.md"
KINDS = {Histogram: "histogram", Counter: "counter", ObservableGauge: "gauge"}


def test_the_metrics_are_those_of_the_code() -> None:
    """Names, kinds and units are what the SDK is told."""
    made: list[list[str]] = []

    class Told(MeterProvider):
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            meter = super().get_meter(*args, **kwargs)
            for kind in ("create_histogram", "create_counter", "create_observable_gauge"):
                setattr(meter, kind, self._noting(getattr(meter, kind)))
            return meter

        @staticmethod
        def _noting(create: Any) -> Any:
            def noted(name: str, *args: Any, **kwargs: Any) -> Any:
                instrument = create(name, *args, **kwargs)
                (kind,) = {word for each, word in KINDS.items() if isinstance(instrument, each)}
                made.append([name, kind, kwargs["unit"]])
                return instrument

            return noted

    provider = Told(shutdown_on_exit=False)
    meter = provider.get_meter("tests")
    LockMetrics(meter, Provider(lambda: provider))
    LockGauges(meter)
    provider.shutdown()
    assert [row[:3] for row in table(PAGE, "Metrics")] == made


def test_the_spans_and_their_attributes_are_those_of_the_code() -> None:
    """Each name in the code is in a table, and no other."""
    text = PAGE.read_text()
    written = set(re.findall(r"^\| `([^`*]+)`", text, re.MULTILINE)) | {names.SKIPPED}
    assert names.SKIPPED in text
    assert written == {
        value for key, value in vars(names).items() if key.isupper() and key != "SCOPE"
    }


def test_the_limits_of_a_collection_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"at most {held.MOST_HOLDERS} locks" in text
    assert f"{held.MOST_QUEUES} longest queues" in text
    assert f"waits {reading.PATIENCE:g} seconds" in text
