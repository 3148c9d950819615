"""The Django application."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class DjangoRedisLockConfig(AppConfig):
    """Registers the system checks."""

    name = "django_redis_lock"
    verbose_name = _("Locks")

    def ready(self) -> None:
        checks.register(_check)
        checks.register(_check_deployed, checks.Tags.security, deploy=True)


# A process that runs no checks does not import them.


def _check(**kwargs: Any) -> list[checks.CheckMessage]:
    from django_redis_lock import checks as ours

    return [*ours.check_locks(), *ours.check_uses(), *ours.check_tasks(**kwargs)]


def _check_deployed(**kwargs: Any) -> list[checks.CheckMessage]:
    from django_redis_lock import checks as ours

    return [*ours.check_deployed()]
