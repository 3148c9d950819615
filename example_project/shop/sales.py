"""Selling one unit of a product."""

import time
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from example_project.shop.models import Order, Product

STALL_SECONDS = 1.0
"""A buyer that stalls takes this much longer than the others, who buy in the meantime."""
LONGEST_STALL_SECONDS = 20.0


class SoldOutError(Exception):
    """No unit is left."""


@dataclass(frozen=True)
class Purchase:
    """A buyer and a product; `stalls` makes the purchase pause, as a suspended process would."""

    product_id: int
    buyer: str
    stalls: bool = False


def sell(purchase: Purchase, products: QuerySet[Product] | None = None) -> Order:
    """Read the stock, take the payment, write the stock; correct only for one buyer at a time.

    Two buyers who both read before either writes both get the last unit. The caller must exclude
    other buyers until the transaction has ended, or pass ``products`` that accept writes only from
    the latest holder of a lock.
    """
    products = Product.objects.all() if products is None else products
    product = products.get(pk=purchase.product_id)
    if product.stock < 1:
        raise SoldOutError
    take_payment(purchase, product.price)
    with transaction.atomic():
        product.stock -= 1
        product.save(update_fields=["stock"])
        return Order.objects.create(product=product, buyer=purchase.buyer)


def take_payment(purchase: Purchase, amount: Decimal) -> None:
    """Stand in for a slow payment service."""
    time.sleep(settings.SHOP_PAYMENT_SECONDS)
    if purchase.stalls:
        until = time.monotonic() + LONGEST_STALL_SECONDS
        orders = Order.objects.filter(product=purchase.product_id)
        while not orders.exists() and time.monotonic() < until:
            time.sleep(settings.SHOP_PAYMENT_SECONDS)
        time.sleep(STALL_SECONDS)
