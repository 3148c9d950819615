"""The Django application that switches traces and metrics on."""

from django.apps import AppConfig


class OpenTelemetryConfig(AppConfig):
    """Traces and counts locks with the global providers of OpenTelemetry."""

    name = "django_redis_lock.contrib.opentelemetry"
    label = "django_redis_lock_opentelemetry"

    def ready(self) -> None:
        from django_redis_lock.contrib.opentelemetry.instrumentor import LockInstrumentor

        instrumentor = LockInstrumentor()
        if not instrumentor.is_instrumented:
            instrumentor.instrument()
