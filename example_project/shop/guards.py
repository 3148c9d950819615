"""What can keep buyers apart: each guard is a way to sell one unit, chosen by its name.

Another guard is one more function with ``@guard(...)``; the buy view and the sale's page find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_redis_lock import lock
from example_project.shop.models import Order
from example_project.shop.sales import sell

Sell = Callable[[int, str], Order]
"""Takes a product's id and a buyer; raises ``SoldOutError`` or what the guard raises."""

LEASE_SECONDS = 10
PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Guard:
    """A way to sell, and how it is called on the page."""

    name: str
    label: str
    sell: Sell
    shown: bool
    """Whether the sale's page offers it."""


GUARDS: dict[str, Guard] = {}
DEFAULT_GUARD = "lock"


def guard(name: str, label: str, *, shown: bool = True) -> Callable[[Sell], Sell]:
    """Make a function a guard that can be chosen."""

    def register(sell: Sell) -> Sell:
        GUARDS[name] = Guard(name, label, sell, shown)
        return sell

    return register


@guard("none", "No guard")
def sell_unguarded(product_id: int, buyer: str) -> Order:
    """Hope that nobody else buys at the same moment."""
    return sell(product_id, buyer)


@guard("lock", "Lock")
def sell_locked(product_id: int, buyer: str) -> Order:
    """Sell while nobody else does; the lock goes around the transaction in ``sell``."""
    with lock(f"product:{product_id}", LEASE_SECONDS, blocking_timeout=PATIENCE_SECONDS):
        return sell(product_id, buyer)
