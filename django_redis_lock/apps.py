"""The Django application."""

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class DjangoRedisLockConfig(AppConfig):
    """Registers the system checks, and lets releases wait for transactions to end."""

    name = "django_redis_lock"
    verbose_name = _("Locks")

    def ready(self) -> None:
        """Register the system checks, and put the gate of transactions before releases."""
        from django_redis_lock.checks import check_locks, check_reports
        from django_redis_lock.primitives import gate
        from django_redis_lock.primitives.transactions import TransactionGate

        checks.register(check_locks)
        checks.register(check_reports, checks.Tags.security, deploy=True)
        gate.install(TransactionGate())
