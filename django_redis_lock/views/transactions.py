"""The transactions of ATOMIC_REQUESTS, which a guarded view begins once it holds its lock."""

from __future__ import annotations

from django.db import connections, transaction

from django_redis_lock.support import django_private
from django_redis_lock.support.django_private import View


class NonAtomicAliases(set[str]):
    """The databases without a transaction of ATOMIC_REQUESTS, as a view or a decorator says.

    Django finds every database in this set and so begins no transaction; the guard begins them once
    it holds the lock, except for those that really are in it.
    """

    def __init__(self, view: View) -> None:
        given = django_private.non_atomic_databases(view)
        super().__init__(given)
        # An inner guard begins the transactions, after it has taken its own lock.
        self._left_to_view = isinstance(given, NonAtomicAliases)

    def __contains__(self, alias: object) -> bool:
        return True

    def wanted(self) -> list[str]:
        """Return the databases that the guard begins a transaction of."""
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and not (self._left_to_view or alias in {*self})
        ]

    def atomic(self, view: View) -> View:
        """Wrap the view in these transactions."""
        for alias in self.wanted():
            view = transaction.atomic(using=alias)(view)
        return view
