"""System checks of ``LOCKS``."""

from __future__ import annotations

from typing import Any

from django.core import checks

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.handler import DEFAULT_ALIAS, locks
from django_redis_lock.prefixes import HINT, collisions


def check_locks(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check every entry of ``LOCKS``, without asking a server."""
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
