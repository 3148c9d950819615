"""Guarded views of every kind, and their addresses."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from django.views.decorators.vary import vary_on_headers
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redis_lock import locks
from django_redis_lock.views import locked

PRODUCT = "product:{product_id}"
on_product = locked(PRODUCT, blocking=False)


def told(request: Any, **more: Any) -> dict[str, Any]:
    """Return what a view knows of its lock, the server asked."""
    holder = locks["default"].holder(request.lock.name)
    return {"name": request.lock.name, "held": holder is not None, **more}


def tell(request: Any) -> HttpResponse:
    return JsonResponse(told(request))


async def atell(request: Any) -> HttpResponse:
    return await sync_to_async(tell)(request)


def plain(request: HttpRequest, product_id: int) -> HttpResponse:
    return tell(request)


async def aplain(request: HttpRequest, product_id: int) -> HttpResponse:
    return await atell(request)


class Plain(View):
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return tell(request)


class AsyncPlain(View):
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return await atell(request)


@csrf_exempt
@locked(PRODUCT, 10, blocking=False, metadata={"of": "tests"})
@require_POST
def buy(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(told(request, fence=request.lock.fence))


@on_product
class OnClass(Plain):
    pass


class OnMethod(View):
    @on_product
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return tell(request)


class OnAsyncMethod(View):
    @on_product
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return await atell(request)


@method_decorator(on_product, name="dispatch")
class OnDispatch(Plain):
    pass


@method_decorator(on_product, name="dispatch")
class OnAsyncDispatch(AsyncPlain):
    pass


# Between other decorators.


@method_decorator(csrf_exempt, name="dispatch")
@on_product
@method_decorator(vary_on_headers("X-Shop"), name="post")
class BetweenAsyncClass(AsyncPlain):
    pass


# Views of Django REST framework.


class APIPlain(APIView):
    def post(self, request: Any, product_id: int) -> Response:
        return Response(told(request))


@on_product
class OnAPIView(APIPlain):
    pass


class OnAPIMethod(APIView):
    @on_product
    def post(self, request: Any, product_id: int) -> Response:
        return Response(told(request))


def api(request: Any, product_id: int) -> Response:
    return Response(told(request))


class Products(ViewSet):
    lookup_url_kwarg = "product_id"

    @on_product
    def retrieve(self, request: Any, product_id: str) -> Response:
        return Response(told(request))

    @action(detail=True, methods=["post"])
    @on_product
    def inner(self, request: Any, product_id: str) -> Response:
        return Response(told(request))


@on_product
class OnViewSet(ViewSet):
    def retrieve(self, request: Any, product_id: str) -> Response:
        return Response(told(request))


class BySku(APIView):
    @locked("sku:{request.data[sku]:s}")
    def post(self, request: Any) -> Response:
        return Response(told(request))


# Transactions.


def in_transaction(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request, atomic=connection.in_atomic_block))


class AtomicPlain(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return in_transaction(request)


class AtomicMethod(View):
    @locked("atomic")
    def post(self, request: HttpRequest) -> HttpResponse:
        return in_transaction(request)


@locked("atomic")
class AtomicView(AtomicPlain):
    pass


@method_decorator(locked("atomic"), name="dispatch")
class AtomicDispatch(AtomicPlain):
    pass


@locked("atomic")
class AtomicAPIView(APIView):
    def post(self, request: Any) -> Response:
        return Response(told(request, atomic=connection.in_atomic_block))


router = SimpleRouter()
router.register("products", Products, "products")

KINDS = {
    "on-class": OnClass.as_view(),
    "on-method": OnMethod.as_view(),
    "on-dispatch": OnDispatch.as_view(),
    "on-as-view": on_product(Plain.as_view()),
    "on-api-view": OnAPIView.as_view(),
    "on-api-method": OnAPIMethod.as_view(),
    "below-api-view": api_view(["POST"])(on_product(api)),
    "above-api-view": on_product(api_view(["POST"])(api)),
    "async": on_product(aplain),
    "on-async-method": OnAsyncMethod.as_view(),
    "on-async-dispatch": OnAsyncDispatch.as_view(),
    "on-async-as-view": on_product(AsyncPlain.as_view()),
    "between-async": never_cache(on_product(csrf_exempt(require_POST(aplain)))),
    "between-async-class": BetweenAsyncClass.as_view(),
}
ATOMIC = {
    "atomic": locked("atomic")(in_transaction),
    "atomic-view": AtomicView.as_view(),
    "atomic-dispatch": AtomicDispatch.as_view(),
    "atomic-as-view": locked("atomic")(AtomicPlain.as_view()),
    "atomic-api-view": AtomicAPIView.as_view(),
}

urlpatterns = [
    path("buy/<int:product_id>/", buy),
    *[path(f"{kind}/<int:product_id>/", view) for kind, view in KINDS.items()],
    path("api/products/<str:product_id>/", Products.as_view({"post": "retrieve"})),
    path("api/on-view-set/<str:product_id>/", OnViewSet.as_view({"post": "retrieve"})),
    path("api/", include(router.urls)),
    path("by-sku/", BySku.as_view()),
    path("cart/", locked("cart:{request.user.pk}")(tell)),
    path("acart/", locked("cart:{request.user.pk}", blocking=False)(atell)),
    path("by-form/", locked("sku:{request.POST[sku]}")(tell)),
    *[path(f"{kind}/", view) for kind, view in ATOMIC.items()],
    path("atomic-method/", AtomicMethod.as_view()),
    path("declined-below/", locked("atomic")(transaction.non_atomic_requests(in_transaction))),
    path("declined-above/", transaction.non_atomic_requests(locked("atomic")(in_transaction))),
]
