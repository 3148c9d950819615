"""Selling one unit of a product."""

import time
from decimal import Decimal

from django.conf import settings
from django.db import transaction

from example_project.shop.models import Order, Product


class SoldOutError(Exception):
    """There is no unit left."""


def sell(product_id: int, buyer: str) -> Order:
    """Read the stock, take the payment, write the stock: right only for one buyer at a time.

    Two buyers who both read before either writes both get the last unit. Keeping them apart is
    left to the caller, who also has to keep them apart until the transaction has ended.
    """
    product = Product.objects.get(pk=product_id)
    if product.stock < 1:
        raise SoldOutError
    take_payment(buyer, product.price)
    with transaction.atomic():
        product.stock -= 1
        product.save(update_fields=["stock"])
        return Order.objects.create(product=product, buyer=buyer)


def take_payment(buyer: str, amount: Decimal) -> None:
    """Stand in for the call of a payment service, which takes its time."""
    time.sleep(settings.SHOP_PAYMENT_SECONDS)
