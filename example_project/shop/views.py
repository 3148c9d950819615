"""The shop's page, and the view that sells.

``/buy/1/?guard=none`` sells without the lock, to show what the lock is for.
"""

from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_POST

from django_redis_lock.exceptions import (
    LockLost,
    LockNotAcquired,
    LockUnavailable,
    StaleFence,
)
from example_project.shop.guards import DEFAULT_GUARD, GUARDS
from example_project.shop.models import Order, Product
from example_project.shop.sales import Purchase, SoldOutError

NEWEST_ORDERS = 12
REFUSALS: dict[type[Exception], tuple[int, str]] = {
    SoldOutError: (410, "it is sold out"),
    LockNotAcquired: (409, "too many buyers at once, try again"),
    StaleFence: (409, "others were quicker, try again"),
    LockLost: (500, "others may have bought at the same time"),  # noticed after the order
    LockUnavailable: (503, "the shop cannot sell at the moment"),
}


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
    """Sell one unit: 201 with the order, or the status in ``REFUSALS``.

    With ``?stall`` the payment takes longer than the lease of the lock.
    """
    product = get_object_or_404(Product, pk=product_id)
    buyer = request.POST.get("buyer", "").strip() or "anonymous"
    name = request.GET.get("guard", DEFAULT_GUARD)
    guard = GUARDS.get(name)
    if guard is None:
        error = f"there is no guard {name!r}; there are {', '.join(GUARDS)}"
        return JsonResponse({"error": error}, status=400)
    try:
        order = guard.sell(Purchase(product.pk, buyer, stalls="stall" in request.GET))
    except tuple(REFUSALS) as error:
        status, reason = REFUSALS[type(error)]
        return JsonResponse({"error": reason}, status=status)
    return JsonResponse({"order": order.pk, "product": product.slug, "buyer": buyer}, status=201)
