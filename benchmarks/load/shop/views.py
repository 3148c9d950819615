"""The view under load: the same for every guard."""

import os
import time
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from benchmarks.load.shop.guards import GUARDS, REFUSALS, NoGuard
from benchmarks.load.shop.models import Order, Product
from benchmarks.load.shop.names import REFUSED, SOLD, SOLD_OUT, UNPAID


class SoldOutError(Exception):
    """There was no unit left when the stock was read."""


class PaidForNothingError(Exception):
    """There was no unit left when the stock was written; the payment must be returned."""


@csrf_exempt
@require_POST
def buy(request: HttpRequest, guard: str, product_id: int, payment: str) -> JsonResponse:
    if payment == "held":
        _arrive()
    try:
        order = sell(GUARDS[guard], product_id, request.headers["X-Buyer"], payment)
    except SoldOutError:
        return JsonResponse({"error": "sold out"}, status=SOLD_OUT)
    except PaidForNothingError:
        return JsonResponse({"error": "sold out, your payment is returned"}, status=UNPAID)
    except REFUSALS:
        return JsonResponse({"error": "busy, try again"}, status=REFUSED)
    return JsonResponse({"order": order.pk}, status=SOLD)


def show(_request: HttpRequest, product_id: int) -> JsonResponse:
    return JsonResponse({"stock": Product.objects.get(pk=product_id).stock})


def sell(guard: NoGuard, product_id: int, buyer: str, payment: str) -> Order:
    """Read the stock, take the payment, write the stock and the order."""
    with guard.around(product_id) as held:
        product = guard.read(product_id)
        if product.stock < 1:
            raise SoldOutError
        take_payment(payment)
        with transaction.atomic(savepoint=False):
            if not guard.write(product, held):
                raise PaidForNothingError
            return Order.objects.create(product=product, buyer=buyer)


def take_payment(payment: str) -> None:
    """Stand in for a payment service: none, one that takes 5 ms, or one that hangs for a while."""
    if payment == "slow":
        time.sleep(settings.PAYMENT_SECONDS)
    elif payment == "held":
        hold = Path(settings.HOLD)
        while hold.exists():
            time.sleep(0.01)


def _arrive() -> None:
    """Record that one more request is about to enter its guard."""
    # An append of one byte is atomic between processes.
    file = os.open(settings.ARRIVALS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b".")
    os.close(file)
