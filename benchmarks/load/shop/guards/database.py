"""Guards of the database alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from benchmarks.load.shop.guards.base import NoGuard
from benchmarks.load.shop.models import Product, Unit

ADVISORY = 1
"""The first of the two numbers of an advisory lock says what kind of thing the second one names."""


class RowLock(NoGuard):
    """``select_for_update()``: the row is locked from the read to the commit."""

    slug = "row"

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        return transaction.atomic()

    def find(self, product_id: int, _held: Any) -> Product | None:
        return self._in_stock(Product.objects.select_for_update().get(pk=product_id))


class Units(NoGuard):
    """One row a unit: each buyer locks the first row that no other has locked.

    A declined payment, or the end of the process, rolls back and frees the unit. PostgreSQL only:
    SQLite has no row locks.
    """

    slug = "units"

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        return transaction.atomic()

    def find(self, product_id: int, _held: Any) -> Unit | None:
        free = Unit.objects.filter(product_id=product_id, sold=False)
        return free.select_for_update(skip_locked=True).first()

    def take(self, found: Unit, _held: Any) -> bool:
        found.sold = True
        found.save(update_fields=["sold"])
        return True


class AdvisoryLock(NoGuard):
    """``pg_advisory_xact_lock()``: a number is locked until the commit. PostgreSQL only."""

    slug = "advisory"

    @contextmanager
    def around(self, product_id: int) -> Iterator[None]:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [ADVISORY, product_id])
            yield


class ConditionalUpdate(NoGuard):
    """``UPDATE ... SET stock = stock - 1 WHERE stock >= 1``: the write itself decides."""

    slug = "update"

    def take(self, found: Product, _held: Any) -> bool:
        in_stock = Product.objects.filter(pk=found.pk, stock__gte=1)
        return in_stock.update(stock=F("stock") - 1) == 1
