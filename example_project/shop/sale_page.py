"""The page of a flash sale: orders, the lock with its holder and queue, and a form for a rush."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from django_redis_lock import locks
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.views import locked
from example_project.shop import rushes
from example_project.shop.guards import DEFAULT_GUARD, GUARDS
from example_project.shop.models import Product

NEWS_SECONDS = 0.2
STREAM_SECONDS = 300
"""The browser reconnects after this time, so that no thread serves a browser that has gone."""


class RushForm(forms.Form):
    """The parameters of a rush."""

    guard = forms.ChoiceField(
        choices=lambda: [(guard.name, guard.label) for guard in GUARDS.values()],
        widget=forms.RadioSelect,
        initial=DEFAULT_GUARD,
    )
    buyers = forms.IntegerField(min_value=1, max_value=rushes.MAX_BUYERS, initial=200)
    units = forms.IntegerField(min_value=1, max_value=rushes.MAX_UNITS, initial=100)
    stall = forms.BooleanField(required=False)


@require_GET
@never_cache
def sale(request: HttpRequest, product_id: int) -> HttpResponse:
    """Show the sale; a script keeps the page up to date."""
    product = get_object_or_404(Product, pk=product_id)
    initial = (rushes_or_none(product_id) or {}).get("plan", {})
    context = {"product": product, "form": RushForm(initial=initial), "state": look(product)}
    return render(request, "shop/sale.html", context)


@require_GET
@never_cache
def news(request: HttpRequest, product_id: int) -> StreamingHttpResponse:
    """Send the state repeatedly, as server-sent events.

    A stream keeps its thread, so the page is updated even while all others serve buyers.
    """
    product = get_object_or_404(Product, pk=product_id)
    return StreamingHttpResponse(_stream(product), content_type="text/event-stream")


@require_GET
@never_cache
def state(request: HttpRequest, product_id: int) -> JsonResponse:
    """Send the state once."""
    return JsonResponse(look(get_object_or_404(Product, pk=product_id)))


@require_POST
@locked("rush:{product_id}", blocking=False)
def start_rush(request: HttpRequest, product_id: int) -> HttpResponse:
    """Restock and start a rush: 202, or 409 while another one runs."""
    product = get_object_or_404(Product, pk=product_id)
    form = RushForm(request.POST)
    if not form.is_valid():
        return JsonResponse({"error": "invalid", "detail": _first_mistake(form)}, status=400)
    wanted = form.cleaned_data
    label = GUARDS[wanted["guard"]].label + (", one stalls" if wanted["stall"] else "")
    plan = rushes.Plan(product.pk, label=label, **wanted)
    rushes.restock(plan)
    # The thread takes over the lock of this request, so it is never free in between.
    ticket = request.lock.detach(rushes.TAKEOVER_SECONDS)  # type: ignore[attr-defined]
    rushes.start(plan, ticket, request.META["SERVER_NAME"], int(request.META["SERVER_PORT"]))
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        return redirect("shop:sale", product_id)  # a browser without scripts
    return JsonResponse({"started": plan.buyers}, status=202)


def look(product: Product) -> dict[str, Any]:
    """Return everything that the page shows."""
    product.refresh_from_db()
    orders = product.orders.count()
    rush = rushes_or_none(product.pk)
    units = rush["plan"]["units"] if rush else product.stock + orders
    return {
        "units": units,
        "orders": orders,
        "stock": product.stock,
        "oversold": max(0, orders - units),
        "rush": rush,
        "results": rushes.results(product.pk) if rush else [],
        **_lock_of(product),
    }


def rushes_or_none(product_id: int) -> dict[str, Any] | None:
    """Return the record of the last rush, ``None`` if there is none or the cache is down."""
    try:
        return rushes.last_rush(product_id)
    except (ConnectionInterrupted, RedisError):
        return None


def _lock_of(product: Product) -> dict[str, Any]:
    name = f"product:{product.pk}"
    try:
        holder = locks["default"].holder(name)
    except LockUnavailable:
        return {"lock": name, "available": False, "holder": None, "waiters": 0}
    shown = None
    if holder is not None:
        shown = {"who": str(holder), "fence": holder.fence, "held_for": holder.held_for}
    waiters = 0 if holder is None else holder.waiters
    return {"lock": name, "available": True, "holder": shown, "waiters": waiters}


def _stream(product: Product) -> Iterator[str]:
    until = time.monotonic() + STREAM_SECONDS
    while time.monotonic() < until:
        yield f"data: {json.dumps(look(product))}\n\n"
        time.sleep(NEWS_SECONDS)


def _first_mistake(form: RushForm) -> str:
    name, messages = next(iter(form.errors.items()))
    return f"{name}: {messages[0]}"
