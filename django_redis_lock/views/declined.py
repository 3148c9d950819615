"""The transactions of ATOMIC_REQUESTS around a guarded view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from django_redis_lock.support.django_private import non_atomic_databases

View = Callable[..., Any]


class Declined(set[str]):
    """The databases for which a view declines the transaction of ATOMIC_REQUESTS.

    Django finds every database in this set and so begins no transaction; the guard begins them once
    it holds the lock, except for those that the view or a decorator above really declined.
    """

    left_to_view = False
    """Whether an inner guard begins the transactions, after it has taken its own lock."""

    @classmethod
    def by(cls, view: View) -> Declined:
        given = non_atomic_databases(view)
        declined = cls(given)
        declined.left_to_view = isinstance(given, cls)
        return declined

    def __contains__(self, alias: object) -> bool:
        return True

    def _wanted(self) -> list[str]:
        if self.left_to_view:
            return []
        really = set(self)
        return [
            alias
            for alias, settings in connections.settings.items()
            if settings["ATOMIC_REQUESTS"] and alias not in really
        ]

    def atomic(self, view: View) -> View:
        """Wrap the view in a transaction of each database that it does not decline."""
        for alias in self._wanted():
            view = transaction.atomic(using=alias)(view)
        return view

    def refuse_transactions(self) -> None:
        """Raise ``RuntimeError``, as Django does, when an asynchronous view would need one."""
        if self._wanted():
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
