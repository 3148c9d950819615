"""The shop's page, and the view that sells.

``/buy/1/?guard=none`` sells without the lock, to show what it is for.
"""

from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_POST

from django_redis_lock.exceptions import LockNotAcquired, LockUnavailable
from example_project.shop.guards import DEFAULT_GUARD, GUARDS
from example_project.shop.models import Order, Product
from example_project.shop.sales import SoldOutError

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
    name = request.GET.get("guard", DEFAULT_GUARD)
    guard = GUARDS.get(name)
    if guard is None:
        error = f"there is no guard {name!r}; there are {', '.join(GUARDS)}"
        return JsonResponse({"error": error}, status=400)
    try:
        order = guard.sell(product.pk, buyer)
    except SoldOutError:
        return JsonResponse({"error": f"{product} is sold out"}, status=410)
    except LockNotAcquired:
        return JsonResponse({"error": "too many buyers at once, try again"}, status=409)
    except LockUnavailable:
        return JsonResponse({"error": "the shop cannot sell at the moment"}, status=503)
    return JsonResponse({"order": order.pk, "product": product.slug, "buyer": buyer}, status=201)
