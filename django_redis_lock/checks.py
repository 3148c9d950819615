"""The system checks of ``LOCKS``, and of what uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from traceback import extract_tb
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DatabaseError
from django.urls import get_resolver

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.prefixes import OTHER_PREFIX, collisions
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import DEFAULT_ALIAS, HOW_TO_WRITE, USES, locks
from django_redis_lock.support.celery_app import celery_app, import_tasks
from django_redis_lock.support.django_private import watch
from django_redis_lock.support.text import without_passwords

LEVELS = {"E": checks.ERROR, "W": checks.WARNING, "I": checks.INFO}


def _found(number: str, text: str, hint: str | None = None) -> checks.CheckMessage:
    return checks.CheckMessage(LEVELS[number[0]], text, hint, id=f"django_redis_lock.{number}")


def check_locks(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """Check every entry of ``LOCKS``, without connecting to a server."""
    try:
        aliases = list(locks)
    except InvalidLockBackend as error:
        yield _found("E001", str(error), HOW_TO_WRITE)
        return
    valid: list[BaseLockBackend] = []
    for alias in aliases:
        try:
            backend = locks.create(alias)
        except InvalidLockBackend as error:
            yield _found("E002", str(error))
            continue
        yield from backend.check()
        with suppress(ImportError):  # check() has reported it
            if backend.name_maker():
                yield _found(
                    "I001",
                    f"KEY_FUNCTION and VERSION of the cache in LOCATION change the lock names of "
                    f"LOCKS[{alias!r}], except those of tasks.",
                    "manage.py locks and the admin page show the changed names.",
                )
        if backend.timeout is not None and backend.timeout > 86_400:
            yield _found(
                "W007",
                f"LOCKS[{alias!r}]['TIMEOUT'] is {backend.timeout:g} seconds, more than a day. "
                f"TIMEOUT is in seconds; was milliseconds meant?",
                "Set TIMEOUT in seconds, such as 30: the lease is renewed while the holder lives.",
            )
        for problem in collisions(backend, valid):
            yield _found("E006", problem, OTHER_PREFIX)
        valid.append(backend)
    if DEFAULT_ALIAS not in aliases:
        text = f"LOCKS has no alias {DEFAULT_ALIAS!r}, which lock() uses by default."
        hint = "Rename an alias to 'default'. " if aliases else ""
        yield _found("E003", text, hint + HOW_TO_WRITE)


def check_uses(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """Check that views and tasks name aliases that exist, and share locks only where they can."""
    if getattr(settings, "ROOT_URLCONF", None):
        get_resolver().url_patterns  # noqa: B018 - imports the views
    for using, what, shares in sorted(USES, key=str):
        with suppress(InvalidLockBackend):  # check_locks reports it
            if using not in locks.settings:
                text = f"{what} has using={using!r}, which is not an alias of LOCKS."
                yield _found("E013", text, "Correct using=, or add that alias to LOCKS.")
            elif shares and not (backend := locks.create(using)).can_share:
                yield _found(
                    "E011",
                    f"{what} uses shared, limit or max_waiters, which LOCKS[{using!r}] "
                    f"({type(backend).__name__}) does not support.",
                    "Set using= to an alias with RedisLockBackend.",
                )


def check_tasks(**kwargs: Any) -> list[checks.CheckMessage]:
    """Import the Celery tasks, as workers do anyway, and check those that are guarded."""
    app = celery_app()
    if app and not app.loader.worker_initialized and (why := _why_not(app)):
        text = f"The tasks of the Celery app {app.main!r} can't be imported: {why}."
        return [_found("E015", text, "Fix this error: it also keeps workers from starting.")]
    if "django_redis_lock.celery" not in sys.modules:
        return []
    from django_redis_lock.celery.checks import check_tasks

    return check_tasks()


@lru_cache(maxsize=1)  # once more, it would find tasks that are half made
def _why_not(app: Any) -> str:
    """Return why the tasks of an app can't be imported, if so, and in which line."""
    try:
        import_tasks(app)
    except DatabaseError:
        return ""  # `makemigrations` and `migrate` may have to create the table first
    except (Exception, SystemExit) as error:
        lines = [one for one in extract_tb(error.__traceback__) if one.name == "<module>"]
        wrong = [error.filename] if isinstance(error, SyntaxError) else []
        watch([*wrong, *(one.filename for one in lines)])
        where = "".join(f"line {one.lineno} of {one.filename}: " for one in lines[-1:])
        return without_passwords(f"{where}{type(error).__name__}: {error}").rstrip(": .")
    return ""


def check_deployed(**kwargs: Any) -> Iterator[checks.CheckMessage]:
    """Check, with ``--deploy``, that the locks of ``LOCKS`` exclude other processes."""
    with suppress(InvalidLockBackend):  # check_locks reports it
        for alias in locks:
            with suppress(InvalidLockBackend):
                backend = locks.create(alias)
                if backend.excludes:
                    which = f"LOCKS[{alias!r}] uses {type(backend).__name__}"
                    text = f"{which}, which excludes {backend.excludes}."
                    yield _found("W008", text, HOW_TO_WRITE)
