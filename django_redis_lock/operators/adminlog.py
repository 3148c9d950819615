"""Writes releases to the log of Django's admin, where it is installed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction

from django_redis_lock.protocol.records import Holder
from django_redis_lock.support.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")

DATABASE_TIMEOUT = 2.0
"""Seconds that the database gets in all."""


def log_releases(user: Any, losers: Sequence[Holder], reason: str) -> str:
    """Write an entry for each forced release; return what prevented it, or ``""``.

    ``user`` is a user object or a username. For ``None`` and for an unknown username nothing is
    written, because an entry needs a user. It runs in a thread with a connection of its own, so a
    hung database does not hold up the caller. Given a user object inside a transaction, it uses the
    transaction's connection instead: another one might wait for the transaction, and might not see
    the user.
    """
    if user is None or not losers or not _installed():
        return ""
    if not isinstance(user, str) and _in_transaction():
        return _write(user, losers, reason, lambda: True)
    written: Future[str] = Future()
    name = "django-redis-lock-admin-log"
    work = (user, losers, reason, written)
    threading.Thread(target=_write_aside, args=work, name=name, daemon=True).start()
    try:
        return written.result(DATABASE_TIMEOUT)
    except TimeoutError:
        failure = f"the database did not answer within {DATABASE_TIMEOUT:g} s"
        if not written.cancel():
            failure = (
                f"the database did not confirm it within {DATABASE_TIMEOUT:g} s; it may still come"
            )
        logger.warning("Releases are not in the admin's log: %s", failure)
        return failure


def _in_transaction() -> bool:
    from django.contrib.admin.models import LogEntry

    return connections[router.db_for_write(LogEntry)].in_atomic_block


def _write_aside(user: Any, losers: Sequence[Holder], reason: str, written: Future[str]) -> None:
    try:
        failure = ""
        if isinstance(user, str):
            user, failure = _user_named(user)
        if user:
            failure = _write(user, losers, reason, written.set_running_or_notify_cancel)
        with suppress(InvalidStateError):  # the caller has given up
            written.set_result(failure)
    finally:
        connections.close_all()  # of this thread


def _user_named(username: Any) -> tuple[Any, str]:
    """Return the user or ``None``, and what prevented the lookup."""
    from django.contrib.auth import get_user_model

    model = get_user_model()
    try:
        found = model._default_manager.filter(**{str(model.USERNAME_FIELD): username}).first()
    except ImproperlyConfigured:  # no database, so no log either
        logger.debug("The users can't be read", exc_info=True)
        return None, ""
    except Exception as error:
        why = without_passwords(str(error))
        logger.warning("Releases are not in the admin's log: %s", why)
        return None, why
    return found, ""


def _write(user: Any, losers: Sequence[Holder], reason: str, is_wanted: Callable[[], bool]) -> str:
    """Write the entries, and commit them only if they are still wanted."""
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    from django_redis_lock.models import HeldLock

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
            if not is_wanted():
                transaction.set_rollback(True, using=using)
    except Exception as error:
        logger.exception("Releases are not in the admin's log")
        return without_passwords(str(error))
    return ""


def _installed() -> bool:
    return apps.is_installed("django.contrib.admin") and apps.is_installed("django.contrib.auth")
