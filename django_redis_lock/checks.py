"""The system checks of ``LOCKS``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.utils.module_loading import import_string

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.prefixes import HINT, collisions
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import DEFAULT_ALIAS, locks

REPORTS = "django_redis_lock.reporting.PasswordsInUrlsFilter"


def check_reports(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check, with ``--deploy``, that mails to ADMINS don't show the passwords in ``LOCKS``."""
    from django_redis_lock.reporting import PasswordsInUrlsFilter

    shown = (settings.LOCKS if hasattr(settings, "LOCKS") else None, settings.CACHES)
    found = import_string(settings.DEFAULT_EXCEPTION_REPORTER_FILTER)
    if (
        not settings.ADMINS
        or issubclass(found, PasswordsInUrlsFilter)
        or not _has_visible_password(shown)
    ):
        return []
    return [
        checks.Warning(
            "Error reports, which are mailed to ADMINS, show the passwords in the URLs of LOCKS "
            "and CACHES.",
            hint=(
                f"Write DEFAULT_EXCEPTION_REPORTER_FILTER = {REPORTS!r}, or put the passwords into "
                f"OPTIONS['PASSWORD'] of CACHES, which Django hides."
            ),
            id="django_redis_lock.W006",
        )
    ]


def _has_visible_password(value: Any) -> bool:
    """Return whether Django's own filter shows a URL with a password."""
    from django.views.debug import SafeExceptionReporterFilter

    from django_redis_lock.reporting import PasswordsInUrlsFilter

    shown = SafeExceptionReporterFilter().cleanse_setting("", value)
    return bool(PasswordsInUrlsFilter().cleanse_setting("", value) != shown)


def check_locks(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check every entry of ``LOCKS``, without connecting to a server."""
    try:
        aliases = list(locks)
    except InvalidLockBackend as error:
        return [checks.Error(str(error), id="django_redis_lock.E001")]
    messages: list[checks.CheckMessage] = []
    valid: list[BaseLockBackend] = []
    for alias in aliases:
        try:
            backend = locks.create(alias)
        except InvalidLockBackend as error:
            messages.append(checks.Error(str(error), id="django_redis_lock.E002"))
        else:
            messages += backend.check()
            messages += [
                checks.Error(problem, hint=HINT, id="django_redis_lock.E006")
                for problem in collisions(backend, valid)
            ]
            valid.append(backend)
    if DEFAULT_ALIAS not in aliases:
        messages.append(
            checks.Error(
                f"LOCKS has no alias {DEFAULT_ALIAS!r}, which lock() uses by default.",
                hint="Name one of the aliases 'default'.",
                id="django_redis_lock.E003",
            )
        )
    return messages
