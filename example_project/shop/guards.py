"""The guards: each is a way to sell one unit, chosen by its name.

To add a guard, write a function with ``@guard(...)``; the buy view and the sale's page find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_redis_lock import Lock, lock
from example_project.shop.models import Order, Product
from example_project.shop.sales import Purchase, sell

Sell = Callable[[Purchase], Order]
"""Raises ``SoldOutError`` or an exception of the guard."""

LEASE_SECONDS = 10.0
SHORT_LEASE_SECONDS = 1.0
"""The lease of a buyer that stalls; it ends before the payment does."""
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Guard:
    """A way to sell, and its label on the page."""

    name: str
    label: str
    sell: Sell


GUARDS: dict[str, Guard] = {}
DEFAULT_GUARD = "lock"


def guard(name: str, label: str) -> Callable[[Sell], Sell]:
    """Register a function as a guard."""

    def register(sell: Sell) -> Sell:
        GUARDS[name] = Guard(name, label, sell)
        return sell

    return register


def product_lock(purchase: Purchase) -> Lock:
    """Return the lock of a product, with a fixed lease."""
    lease = SHORT_LEASE_SECONDS if purchase.stalls else LEASE_SECONDS
    return lock(f"product:{purchase.product_id}", lease, blocking_timeout=PATIENCE_SECONDS)


@guard("none", "No guard")
def sell_unguarded(purchase: Purchase) -> Order:
    """Sell without a lock."""
    return sell(purchase)


@guard("lock", "Lock")
def sell_locked(purchase: Purchase) -> Order:
    """Sell under the lock, which encloses the transaction in ``sell``."""
    with product_lock(purchase):
        return sell(purchase)


@guard("fenced", "Lock with fencing")
def sell_fenced(purchase: Purchase) -> Order:
    """Sell under the lock; the row rejects a holder that has lost it without knowing."""
    with product_lock(purchase) as held:
        return sell(purchase, Product.objects.fenced(held))
