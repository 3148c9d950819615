"""The shop's page, and the view that sells.

``/buy/1/?guard=off`` sells without the lock, to show what it is for.
"""

from contextlib import nullcontext

from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_POST

from django_redis_lock import lock
from django_redis_lock.exceptions import LockNotAcquired, LockUnavailable
from example_project.shop.models import Order, Product
from example_project.shop.sales import SoldOutError, sell

NEWEST_ORDERS = 12


@require_GET
def front_page(request: HttpRequest) -> HttpResponse:
    """Show the products with their stock, and the newest orders."""
    context = {
        "products": Product.objects.annotate(sold=Count("orders")),
        "orders": Order.objects.select_related("product")[:NEWEST_ORDERS],
    }
    return render(request, "shop/front_page.html", context)


@require_POST
def buy(request: HttpRequest, product_id: int) -> JsonResponse:
    """Sell one unit: 201 with the order, 410 when sold out, 409 or 503 when the lock said no."""
    product = get_object_or_404(Product, pk=product_id)
    buyer = request.POST.get("buyer", "").strip() or "somebody"
    # The lock goes around the transaction in sell(), so that it is released after the commit.
    guard = (
        nullcontext()
        if request.GET.get("guard") == "off"
        else lock(f"product:{product.pk}", timeout=10, blocking_timeout=30)
    )
    try:
        with guard:
            order = sell(product.pk, buyer)
    except SoldOutError:
        return JsonResponse({"error": f"{product} is sold out"}, status=410)
    except LockNotAcquired:
        return JsonResponse({"error": "too many buyers at once, try again"}, status=409)
    except LockUnavailable:
        return JsonResponse({"error": "the shop cannot sell at the moment"}, status=503)
    return JsonResponse({"order": order.pk, "product": product.slug, "buyer": buyer}, status=201)
