"""The requests that guarded views are passed, and what is in the place of a lock."""

from __future__ import annotations

from typing import Literal, NoReturn

from django.http import HttpRequest

from django_redis_lock.exceptions import LockNotOwned
from django_redis_lock.primitives.lock import Lock


class NoLock:
    """The ``request.lock`` of a request whose method takes none. It is false.

    To use it as a lock raises ``LockNotOwned``.
    """

    def __init__(self, method: str | None, methods: frozenset[str]) -> None:
        self._why = (
            f"This view takes no lock for {method}, only for its methods={sorted(methods)}. "
            f"Ask 'if request.lock:' first, or add {method!r} to methods."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._why}>"

    def __bool__(self) -> Literal[False]:
        return False

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("_"):  # what Python looks for, as when it copies a request
            raise AttributeError(attribute)
        raise LockNotOwned(f"request.lock.{attribute}: {self._why}")

    def _refuse(self, *error: object) -> NoReturn:
        raise LockNotOwned(self._why)

    __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse


class GuardedRequest(HttpRequest):
    """The request passed to a guarded view, for annotations."""

    lock: Lock | NoLock


class LockedRequest(HttpRequest):
    """The request of a view that only methods which take the lock can reach."""

    lock: Lock
