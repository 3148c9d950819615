"""The view that Prometheus scrapes."""

from __future__ import annotations

import os

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from django_redis_lock.contrib.prometheus.metrics import HELD_LOCKS, MULTIPROCESS


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics, those of other libraries in the default registry included.

    In multiprocess mode these are the metrics of all processes that share the directory, and the
    gauges of the held locks. It needs no login: restrict it to Prometheus.
    """
    registry = REGISTRY
    if MULTIPROCESS in os.environ:
        registry = CollectorRegistry()
        registry.register(HELD_LOCKS)
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)
