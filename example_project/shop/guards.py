"""What can keep buyers apart: each guard is a way to sell one unit, chosen by its name.

Another guard is one more function with ``@guard(...)``; the buy view and the sale's page find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_redis_lock import Lock, lock
from example_project.shop.models import Order, Product
from example_project.shop.sales import Purchase, sell

Sell = Callable[[Purchase], Order]
"""Raises ``SoldOutError``, or what the guard raises."""

LEASE_SECONDS = 10.0
SHORT_LEASE_SECONDS = 1.0
"""The lease of a buyer that stalls, so that it ends before the payment does."""
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Guard:
    """A way to sell, and how it is called on the page."""

    name: str
    label: str
    sell: Sell


GUARDS: dict[str, Guard] = {}
DEFAULT_GUARD = "lock"


def guard(name: str, label: str) -> Callable[[Sell], Sell]:
    """Make a function a guard that can be chosen."""

    def register(sell: Sell) -> Sell:
        GUARDS[name] = Guard(name, label, sell)
        return sell

    return register


def product_lock(purchase: Purchase) -> Lock:
    """Return the lock of a product, with a lease that is not renewed."""
    lease = SHORT_LEASE_SECONDS if purchase.stalls else LEASE_SECONDS
    return lock(f"product:{purchase.product_id}", lease, blocking_timeout=PATIENCE_SECONDS)


@guard("none", "No guard")
def sell_unguarded(purchase: Purchase) -> Order:
    """Hope that nobody else buys at the same moment."""
    return sell(purchase)


@guard("lock", "Lock")
def sell_locked(purchase: Purchase) -> Order:
    """Sell while nobody else does; the lock goes around the transaction in ``sell``."""
    with product_lock(purchase):
        return sell(purchase)


@guard("fenced", "Lock with fencing")
def sell_fenced(purchase: Purchase) -> Order:
    """Sell under the lock, and let the row refuse whoever has lost it without knowing."""
    with product_lock(purchase) as held:
        return sell(purchase, Product.objects.fenced(held))
