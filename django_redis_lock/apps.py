"""The Django application."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoRedisLockConfig(AppConfig):
    """Registers the system checks."""

    name = "django_redis_lock"
    verbose_name = _("Locks")

    def ready(self) -> None:
        import django_redis_lock.checks  # noqa: F401 - registers them
