"""Traces and metrics of locks for OpenTelemetry.

Add ``"django_redis_lock.contrib.opentelemetry"`` to ``INSTALLED_APPS``, or call
``LockInstrumentor().instrument()``.
"""

from django.core.exceptions import ImproperlyConfigured

try:
    import opentelemetry.trace  # noqa: F401 - is there, or the error below says what is missing
except ImportError as error:
    raise ImproperlyConfigured(
        "django_redis_lock.contrib.opentelemetry needs opentelemetry-api. Install it with "
        "pip install 'django-redis-lock[opentelemetry]'."
    ) from error

from django_redis_lock.contrib.opentelemetry.instrumentor import LockInstrumentor

__all__ = ["LockInstrumentor"]
