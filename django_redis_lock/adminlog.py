"""The log of Django's admin, where that is installed."""

from __future__ import annotations

import logging
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router, transaction

from django_redis_lock.records import Holder
from django_redis_lock.text import visible

logger = logging.getLogger("django_redis_lock")


def user_named(username: str) -> Any:
    """Return the user of that name, or ``None`` where there is none or the admin has no log.

    An entry of the admin's log belongs to a user, so without one there is no entry.
    """
    if not _installed():
        return None
    from django.contrib.auth import get_user_model

    model = get_user_model()
    try:
        return model._default_manager.filter(**{str(model.USERNAME_FIELD): username}).first()
    except (DatabaseError, ImproperlyConfigured):  # no database, or no tables yet
        logger.debug("The users can't be read", exc_info=True)
        return None


def log_release(user: Any, loser: Holder, reason: str) -> None:
    """Write that a user took a lock from its holder; a failure is logged and changes nothing."""
    if not _installed():
        return
    from django.contrib.admin.models import CHANGE, LogEntry

    from django_redis_lock.models import HeldLock

    message = f"Taken from {visible(str(loser))}." + (
        f" Reason: {visible(reason)}" if reason else ""
    )
    try:
        # In a savepoint: a failure must not spoil a transaction that the caller is in.
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            LogEntry.objects.log_actions(
                user_id=user.pk,
                queryset=[HeldLock.of(loser.using, loser.name)],
                action_flag=CHANGE,  # a deletion would have no link to the lock's page
                change_message=message,
                single_object=True,
            )
    except Exception:
        logger.exception("The release of lock %r is not in the admin's log", loser.name)


def _installed() -> bool:
    return apps.is_installed("django.contrib.admin") and apps.is_installed("django.contrib.auth")
