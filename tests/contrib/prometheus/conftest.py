"""The metrics, turned on for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from django_redis_lock.contrib.gauges import forget_readings
from django_redis_lock.contrib.prometheus import metrics

Value = Callable[..., float | None]


@pytest.fixture
def value(settings: Any) -> Iterator[Value]:
    """Read a metric of the default backend; counters count from the begin of the test."""
    before = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in REGISTRY.collect()
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }
    forget_readings()

    def value(name: str, **labels: str) -> float | None:
        labels = {"using": "default", "backend": "RedisLockBackend", **labels}
        labels = {key: label for key, label in labels.items() if label}
        full = f"django_redis_lock_{name}"
        found = REGISTRY.get_sample_value(full, labels)
        return None if found is None else found - before.get((full, *sorted(labels.items())), 0.0)

    for signal in metrics.COUNTS:
        signal.connect(metrics.count)
    yield value
    for signal in metrics.COUNTS:
        signal.disconnect(metrics.count)
