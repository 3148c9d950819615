"""Selling one unit of a product."""

import time
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from example_project.shop.models import Order, Product

STALL_SECONDS = 1.0
"""How much longer than others, who buy meanwhile, a buyer takes that stalls."""
LONGEST_STALL_SECONDS = 20.0


class SoldOutError(Exception):
    """There is no unit left."""


@dataclass(frozen=True)
class Purchase:
    """Who wants what, and whether it stalls halfway, as a paused process would."""

    product_id: int
    buyer: str
    stalls: bool = False


def sell(purchase: Purchase, products: QuerySet[Product] | None = None) -> Order:
    """Read the stock, take the payment, write the stock: right only for one buyer at a time.

    Two buyers who both read before either writes both get the last unit. Keeping them apart is
    left to the caller, who also has to keep them apart until the transaction has ended; or gives
    ``products`` that can be written by the latest holder of a lock alone.
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
    """Stand in for the call of a payment service, which takes its time."""
    time.sleep(settings.SHOP_PAYMENT_SECONDS)
    if purchase.stalls:
        until = time.monotonic() + LONGEST_STALL_SECONDS
        orders = Order.objects.filter(product=purchase.product_id)
        while not orders.exists() and time.monotonic() < until:
            time.sleep(settings.SHOP_PAYMENT_SECONDS)
        time.sleep(STALL_SECONDS)
