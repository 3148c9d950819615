"""The Django application that switches traces and metrics on."""

from django.apps import AppConfig

from django_redis_lock.contrib.opentelemetry import LockInstrumentor


class OpenTelemetryConfig(AppConfig):
    """Traces and counts locks with the global providers of OpenTelemetry."""

    name = "django_redis_lock.contrib.opentelemetry"
    label = "django_redis_lock_opentelemetry"

    def ready(self) -> None:
        if not LockInstrumentor().is_instrumented:
            LockInstrumentor().instrument()
