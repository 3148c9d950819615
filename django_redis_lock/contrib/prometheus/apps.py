"""The Django application."""

import os
from pathlib import Path

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class PrometheusConfig(AppConfig):
    """Counts events of locks, and reads held locks when Prometheus scrapes."""

    name = "django_redis_lock.contrib.prometheus"
    label = "django_redis_lock_prometheus"

    def ready(self) -> None:
        """Connect the receivers. Raises ``ImproperlyConfigured``."""
        try:
            from django_redis_lock.contrib.prometheus import metrics
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise ImproperlyConfigured(
                f"{self.name} in INSTALLED_APPS needs prometheus-client: install "
                f"django-redis-lock[prometheus]."
            ) from error
        directory = os.environ.get(metrics.MULTIPROCESS)
        if directory is not None and not Path(directory).is_dir():
            raise ImproperlyConfigured(
                f"{metrics.MULTIPROCESS} is {directory!r}, which is not a directory: create an "
                f"empty one before the processes start."
            )
        for signal in metrics.COUNTS:
            signal.connect(metrics.count)
