"""The view that Prometheus scrapes."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder

from django_redis_lock.contrib.prometheus.collector import registry


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics, those of other libraries in the default registry included.

    It asks nobody to log in: let only Prometheus reach it.
    """
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry()), content_type=content_type)
