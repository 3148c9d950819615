"""The site: a view that takes a lock and sends a guarded task."""

from __future__ import annotations

from django.dispatch import receiver
from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_redis_lock import lock, signals
from tests.apps.traced.app import report
from tests.tools.celery_worker import tell


@receiver(signals.lock_waiting)
def _tell(name: str, **kwargs: object) -> None:
    """Tell the test that a request waits, and that its span knows for whom."""
    tell(f"waiting {name}")


def order(request: HttpRequest, what: str) -> JsonResponse:
    with lock(f"stock:{what}", timeout=10):
        return JsonResponse({"task": report.delay(what).id})


urlpatterns = [path("order/<str:what>", order)]
