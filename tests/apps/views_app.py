"""Guarded views of every kind, and their addresses."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path, re_path
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


def told(request: Any, **more: Any) -> dict[str, Any]:
    """Return what a view knows of its lock, the server asked."""
    holder = locks["default"].holder(request.lock.name)
    return {"name": request.lock.name, "held": holder is not None, **more}


async def atold(request: Any, **more: Any) -> dict[str, Any]:
    holder = await locks["default"].aholder(request.lock.name)
    return {"name": request.lock.name, "held": holder is not None, **more}


@csrf_exempt
@locked(PRODUCT, 10, blocking=False, metadata={"of": "tests"})
@require_POST
def buy(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(told(request, fence=request.lock.fence))


@locked(PRODUCT, blocking=False)
async def abuy(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(await atold(request))


@locked(PRODUCT, blocking=False)
class OnClass(View):
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(told(request))


class OnMethod(View):
    @locked(PRODUCT, blocking=False)
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(told(request))


class OnAsyncMethod(View):
    @locked(PRODUCT, blocking=False)
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


@method_decorator(locked(PRODUCT, blocking=False), name="dispatch")
class OnDispatch(View):
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(told(request))


@method_decorator(locked(PRODUCT, blocking=False), name="dispatch")
class OnAsyncDispatch(View):
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


# Between other decorators.


@never_cache
@locked(PRODUCT, blocking=False)
@csrf_exempt
@require_POST
async def between(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(await atold(request))


class AsyncObject:
    async def __call__(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


@method_decorator(csrf_exempt, name="dispatch")
@locked(PRODUCT, blocking=False)
@method_decorator(vary_on_headers("X-Shop"), name="post")
class BetweenAsyncClass(View):
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


@method_decorator([never_cache, locked(PRODUCT, blocking=False), require_POST], name="post")
class BetweenAsyncMethod(View):
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


class Plain(View):
    def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(told(request))


def plain(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(told(request))


class AsyncPlain(View):
    async def post(self, request: HttpRequest, product_id: int) -> HttpResponse:
        return JsonResponse(await atold(request))


# Views of Django REST framework.


@locked(PRODUCT, blocking=False)
class OnAPIView(APIView):
    def post(self, request: Any, product_id: int) -> Response:
        return Response(told(request))


class APIPlain(APIView):
    def post(self, request: Any, product_id: int) -> Response:
        return Response(told(request))


class OnAPIMethod(APIView):
    @locked(PRODUCT, blocking=False)
    def post(self, request: Any, product_id: int) -> Response:
        return Response(told(request))


@api_view(["POST"])
@locked(PRODUCT, blocking=False)
def below_api_view(request: Any, product_id: int) -> Response:
    return Response(told(request))


@locked(PRODUCT, blocking=False)
@api_view(["POST"])
def above_api_view(request: Any, product_id: int) -> Response:
    return Response(told(request))


class Products(ViewSet):
    lookup_url_kwarg = "product_id"

    @locked(PRODUCT, blocking=False)
    def retrieve(self, request: Any, product_id: str) -> Response:
        return Response(told(request))

    @action(detail=True, methods=["post"])
    @locked(PRODUCT, blocking=False)
    def inner(self, request: Any, product_id: str) -> Response:
        return Response(told(request))

    @locked(PRODUCT, blocking=False)
    @action(detail=True, methods=["post"])
    def outer(self, request: Any, product_id: str) -> Response:
        return Response(told(request))


@locked(PRODUCT, blocking=False)
class OnViewSet(ViewSet):
    lookup_url_kwarg = "product_id"

    def retrieve(self, request: Any, product_id: str) -> Response:
        return Response(told(request))


class BySku(APIView):
    @locked("sku:{request.data[sku]}")
    def post(self, request: Any) -> Response:
        return Response(told(request))


# What names are made of.


@locked("cart:{request.user.pk}")
def cart(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request))


@locked("cart:{request.user.pk}", blocking=False)
async def acart(request: HttpRequest) -> HttpResponse:
    return JsonResponse(await atold(request))


@locked(lambda request: f"cart:{request.user.pk}", blocking=False)
async def acart_by_callable(request: HttpRequest) -> HttpResponse:
    return JsonResponse(await atold(request))


@locked("sku:{request.POST[sku]}")
def by_form(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request))


@locked("page:{page:03d}:{request.method}")
def with_default(request: HttpRequest, page: int = 1) -> HttpResponse:
    return JsonResponse(told(request))


@locked("{first}-{second}")
def unnamed(request: HttpRequest, first: str, second: str) -> HttpResponse:
    return JsonResponse(told(request))


@locked(lambda request, product_id: f"{request.method}:{product_id}")
def by_callable(request: HttpRequest, product_id: int) -> HttpResponse:
    return JsonResponse(told(request))


@locked(lambda request, product_id: product_id)
def by_bad_callable(request: HttpRequest, product_id: int) -> HttpResponse:
    raise AssertionError


@locked("{{the}} report")
def the_report(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request))


@locked("text:{text}")
def by_text(request: HttpRequest, text: str) -> HttpResponse:
    return JsonResponse(told(request))


@locked("text:{text}")
async def aby_text(request: HttpRequest, text: str) -> HttpResponse:
    return JsonResponse(await atold(request))


@locked("product:{slug}")
def with_any(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return JsonResponse(told(request))


# How a view can end.


@locked("failing")
def failing(request: HttpRequest) -> HttpResponse:
    raise LookupError("the view's own")


@locked("failing")
async def afailing(request: HttpRequest) -> HttpResponse:
    raise LookupError("the view's own")


@locked("released")
def released(request: HttpRequest) -> HttpResponse:
    request.lock.release()
    return HttpResponse("done")


@locked("detached")
def detached(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.lock.detach(60))


@locked("lost")
def losing(request: HttpRequest) -> HttpResponse:
    get_user_model().objects.create(username="ghost")
    locks["default"].force_release("lost")
    return HttpResponse("done")


@locked("lost")
async def alosing(request: HttpRequest) -> HttpResponse:
    await locks["default"].aforce_release("lost")
    return HttpResponse("done")


@locked("again", reentrant=True)
def again(request: HttpRequest) -> HttpResponse:
    return inner(request)


@locked("again", blocking=False, reentrant=True)
def inner(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request))


# Transactions.


def in_transaction() -> dict[str, Any]:
    return {"atomic": connection.in_atomic_block}


@locked("atomic")
def atomic(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request, **in_transaction()))


@locked("atomic")
@transaction.non_atomic_requests
def declined_below(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request, **in_transaction()))


@transaction.non_atomic_requests
@locked("atomic")
def declined_above(request: HttpRequest) -> HttpResponse:
    return JsonResponse(told(request, **in_transaction()))


@locked("atomic")
class AtomicView(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(told(request, **in_transaction()))


class AtomicPlain(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(told(request, **in_transaction()))


class AtomicMethod(View):
    @locked("atomic")
    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(told(request, **in_transaction()))


@method_decorator(locked("atomic"), name="dispatch")
class AtomicDispatch(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(told(request, **in_transaction()))


@locked("atomic")
class AtomicAPIView(APIView):
    def post(self, request: Any) -> Response:
        return Response(told(request, **in_transaction()))


@locked("atomic")
def writing(request: HttpRequest) -> HttpResponse:
    get_user_model().objects.create(username="ghost")
    raise LookupError("the view's own")


router = SimpleRouter()
router.register("products", Products, "products")

KINDS = {
    "on-class": OnClass.as_view(),
    "on-method": OnMethod.as_view(),
    "on-dispatch": OnDispatch.as_view(),
    "on-as-view": locked(PRODUCT, blocking=False)(Plain.as_view()),
    "on-api-view": OnAPIView.as_view(),
    "on-api-method": OnAPIMethod.as_view(),
    "on-api-as-view": locked(PRODUCT, blocking=False)(APIPlain.as_view()),
    "below-api-view": below_api_view,
    "above-api-view": above_api_view,
    "async": abuy,
    "on-async-method": OnAsyncMethod.as_view(),
    "on-async-dispatch": OnAsyncDispatch.as_view(),
    "on-async-as-view": locked(PRODUCT, blocking=False)(AsyncPlain.as_view()),
    "on-async-object": locked(PRODUCT, blocking=False)(AsyncObject()),
    "on-sync-to-async": locked(PRODUCT, blocking=False)(sync_to_async(plain)),
    "between-async": between,
    "between-async-class": BetweenAsyncClass.as_view(),
    "between-async-method": BetweenAsyncMethod.as_view(),
    "between-async-as-view": never_cache(
        locked(PRODUCT, blocking=False)(csrf_exempt(AsyncPlain.as_view()))
    ),
}
ATOMIC = {
    "atomic": atomic,
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
    path("cart/", cart),
    path("acart/", acart),
    path("acart-by-callable/", acart_by_callable),
    path("by-form/", by_form),
    path("with-default/", with_default),
    path("with-default/<int:page>/", with_default),
    re_path(r"^unnamed/(\w+)/(\w+)/$", unnamed),
    path("by-callable/<int:product_id>/", by_callable),
    path("by-bad-callable/<int:product_id>/", by_bad_callable),
    path("the-report/", the_report),
    path("by-text/<path:text>/", by_text),
    path("aby-text/<path:text>/", aby_text),
    path("with-any/<slug:slug>/", with_any),
    path("with-other/<slug:other>/", with_any),
    path("failing/", failing),
    path("afailing/", afailing),
    path("released/", released),
    path("detached/", detached),
    path("losing/", losing),
    path("alosing/", alosing),
    path("again/", again),
    *[path(f"{kind}/", view) for kind, view in ATOMIC.items()],
    path("atomic-method/", AtomicMethod.as_view()),
    path("declined-below/", declined_below),
    path("declined-above/", declined_above),
    path("writing/", writing),
]
