"""The transactions of ATOMIC_REQUESTS around a guarded view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

View = Callable[..., Any]


class Declined(set[str]):
    """The databases for which a view declines the transaction of ATOMIC_REQUESTS.

    Django finds all of them here, and so leaves the transactions to us, who begin them once the
    lock is held. What the view and the decorators above ours really decline is remembered.
    """

    left_to_view = False
    """Whether the view has a lock of its own, after which the transactions are to begin."""

    @classmethod
    def by(cls, view: View) -> Declined:
        """Return what a view declines."""
        given = getattr(view, "_non_atomic_requests", ())
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
        """Return the view in a transaction of each database that it does not decline."""
        for alias in self._wanted():
            view = transaction.atomic(using=alias)(view)
        return view

    def refuse_transactions(self) -> None:
        """Raise ``RuntimeError``, as Django does, where an asynchronous view would need one."""
        if self._wanted():
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
