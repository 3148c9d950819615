"""Views that tests define, and a client for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from django_redis_lock import lock
from django_redis_lock.views import locked
from tests.apps import views_app

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

ADDRESSES = [
    *[f"/{kind}/7/" for kind in views_app.KINDS],
    "/api/products/7/",
    "/api/products/7/inner/",
    "/api/on-view-set/7/",
]


@pytest.fixture
def web() -> Client:
    return Client()


def both(guard: Any, view: Any) -> list[Any]:
    """Guard a view and an asynchronous one that answers the same; return both, to be called."""

    async def aview(request: Any) -> HttpResponse:
        return view(request)

    guarded = guard(aview)
    return [guard(view), lambda request: asyncio.run(guarded(request))]


def view(**options: Any) -> Callable[..., HttpResponse]:
    @locked("view", blocking=False, **options)
    def answer(request: Any) -> HttpResponse:
        return HttpResponse("done")

    return answer


def refused(headers: dict[str, str] | None = None, **options: Any) -> HttpResponse:
    """Return what a view answers whose lock is held by another caller."""
    with lock("view", timeout=60):
        return view(**options)(RequestFactory().post("/", headers=headers or {}))
