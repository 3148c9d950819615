"""What a guard is, and the shop without one. Orders differ in nothing but their guards."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from benchmarks.load.shop.models import Order, Product

LEASE = 60
"""Seconds. python-redis-lock does not wait longer than its lease."""
WAIT = 60
"""The longest wait of a buyer in seconds."""


class NoGuard:
    """No guard: read the stock and write it later, as with Django's ``save()``."""

    slug: ClassVar[str] = "none"

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        """Return the context from before the first read until after the last commit."""
        return nullcontext()

    def find(self, product_id: int, _held: Any) -> Any:
        """Return what `take` takes a unit of; None if there is no unit."""
        return self._in_stock(Product.objects.get(pk=product_id))

    def order(self, product_id: int, buyer: str, _held: Any) -> Order:
        return Order.objects.create(product_id=product_id, buyer=buyer)

    def take(self, found: Any, _held: Any) -> bool:
        """Take the unit from the stock; return False if there is none left after all."""
        found.stock -= 1
        found.save(update_fields=["stock"])
        return True

    def _in_stock(self, product: Product) -> Product | None:
        return product if product.stock >= 1 else None
