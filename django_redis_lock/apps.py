"""The Django application."""

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class DjangoRedisLockConfig(AppConfig):
    """Registers the system checks."""

    name = "django_redis_lock"
    verbose_name = _("Locks")

    def ready(self) -> None:
        """Register the system checks."""
        from django_redis_lock.checks import check_deployed, check_locks, check_reports

        checks.register(check_locks)
        checks.register(check_deployed, checks.Tags.security, deploy=True)
        checks.register(check_reports, checks.Tags.security, deploy=True)
