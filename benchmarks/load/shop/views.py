"""The view under load: the same for every guard."""

import os
import time
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from benchmarks.load.shop.errors import DeclinedError, PaidForNothingError, SoldOutError
from benchmarks.load.shop.guards import GUARDS, REFUSALS
from benchmarks.load.shop.guards.base import NoGuard
from benchmarks.load.shop.models import Order, Product
from benchmarks.load.shop.names import DECLINED, REFUSED, SOLD, SOLD_OUT, UNPAID


@csrf_exempt
@require_POST
def buy(request: HttpRequest, guard: str, product_id: int, payment: str) -> JsonResponse:
    if payment == "held":
        _arrive()
    try:
        order = sell(GUARDS[guard], product_id, request.headers["X-Buyer"], payment)
    except SoldOutError:
        return JsonResponse({"error": "sold out"}, status=SOLD_OUT)
    except DeclinedError:
        return JsonResponse({"error": "your payment was declined"}, status=DECLINED)
    except PaidForNothingError:
        return JsonResponse({"error": "sold out, your payment is returned"}, status=UNPAID)
    except REFUSALS:
        return JsonResponse({"error": "busy, try again"}, status=REFUSED)
    return JsonResponse({"order": order.pk}, status=SOLD)


def show(_request: HttpRequest, product_id: int) -> JsonResponse:
    return JsonResponse({"stock": Product.objects.get(pk=product_id).stock})


def sell(guard: NoGuard, product_id: int, buyer: str, payment: str) -> Order:
    """Find a unit, take the payment, write the order and the stock."""
    with guard.around(product_id) as held:
        found = guard.find(product_id, held)
        if found is None:
            raise SoldOutError
        take_payment(payment)
        with transaction.atomic(savepoint=False):
            # The order comes first, so that the product's row is locked only until the commit.
            order = guard.order(product_id, buyer, held)
            if not guard.take(found, held):
                raise PaidForNothingError
        return order


def take_payment(payment: str) -> None:
    """Stand in for a payment service.

    It has nothing to do, takes 5 ms, declines after as long, or hangs for a while.
    """
    if payment in {"slow", "declined"}:
        time.sleep(settings.PAYMENT_SECONDS)
        if payment == "declined":
            raise DeclinedError
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
