"""The log of Django's admin, where that is installed."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction

from django_redis_lock.records import Holder
from django_redis_lock.text import visible, without_passwords

logger = logging.getLogger("django_redis_lock")

PATIENCE = 2.0
"""Seconds for which the database may keep the entries of a named user waiting, in all."""


class AdminLog:
    """Where the releases by one user are written.

    ``user`` is an object of the user model: then it is done on the caller's connection. Or the name
    of one, who is looked up then, on a connection and in a thread of their own, for the caller is
    not to wait for a database that hangs. Nobody of that name, or ``None``, has no entries: one
    belongs to a user.
    """

    def __init__(self, user: Any) -> None:
        self._user = user if _installed() else None
        self._work: SimpleQueue[tuple[Holder, str, Future[str]] | None] | None = None
        self._failure = ""

    def write(self, loser: Holder, reason: str) -> str:
        """Write that a lock was taken from its holder; return what hindered it, or ``""``."""
        if self._user is None or self._failure:
            return self._failure
        if not isinstance(self._user, str):
            return _write(self._user, loser, reason)
        if self._work is None:
            self._work = SimpleQueue()
            name = "django-redis-lock-admin-log"
            threading.Thread(target=self._run, args=(self._work,), name=name, daemon=True).start()
        written: Future[str] = Future()
        self._work.put((loser, reason, written))
        try:
            return written.result(PATIENCE)
        except TimeoutError:
            self._failure = f"the database did not answer within {PATIENCE:g} s"
            logger.warning("Releases are not in the admin's log: %s", self._failure)
            return self._failure

    def close(self) -> None:
        """Write no more."""
        if self._work is not None:
            self._work.put(None)

    def _run(self, work: SimpleQueue[tuple[Holder, str, Future[str]] | None]) -> None:
        try:
            user, failure = _user_named(self._user)
            while (item := work.get()) is not None:
                loser, reason, written = item
                written.set_result(_write(user, loser, reason) if user else failure)
        finally:
            connections.close_all()  # they are this thread's


def _user_named(username: Any) -> tuple[Any, str]:
    """Return the user, if there is one, or what hindered the look."""
    from django.contrib.auth import get_user_model

    model = get_user_model()
    try:
        found = model._default_manager.filter(**{str(model.USERNAME_FIELD): username}).first()
    except ImproperlyConfigured:  # a project without a database, and so without that log
        logger.debug("The users can't be read", exc_info=True)
        return None, ""
    except Exception as error:
        why = without_passwords(str(error))
        logger.warning("Releases are not in the admin's log: %s", why)
        return None, why
    return found, ""


def _write(user: Any, loser: Holder, reason: str) -> str:
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
    except Exception as error:
        logger.exception("The release of lock %r is not in the admin's log", loser.name)
        return without_passwords(str(error))
    return ""


def _installed() -> bool:
    return apps.is_installed("django.contrib.admin") and apps.is_installed("django.contrib.auth")
