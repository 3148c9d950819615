"""Writes releases to the log of the admin."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import router, transaction

from django_redis_lock.models import HeldLock
from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")


def log_releases(user: Any, losers: Iterable[Holder], reason: str) -> str:
    """Write an entry for each forced release; return what prevented it, or ``""``."""
    using = router.db_for_write(LogEntry)
    try:
        # In savepoints, so that a failure does not break the caller's transaction. The content type
        # has its own: Django caches it, so it must not be rolled back.
        with transaction.atomic(using=using):
            kind = ContentType.objects.get_for_model(HeldLock, for_concrete_model=False)
        entries = [
            LogEntry(
                user_id=user.pk,
                content_type_id=kind.pk,
                object_id=(lock := HeldLock.of(loser.using, loser.name)).pk,
                object_repr=str(lock)[:200],
                action_flag=CHANGE,  # DELETION has no link to the lock's page
                change_message=f"Taken from {visible(str(loser))}."
                + (f" Reason: {visible(reason)}" if reason else ""),
            )
            for loser in losers
        ]
        with transaction.atomic(using=using):
            LogEntry.objects.using(using).bulk_create(entries)
    except Exception as error:
        logger.exception("Releases are not in the admin's log")
        return without_passwords(str(error))
    return ""
