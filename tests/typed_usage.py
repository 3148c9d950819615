"""How a project uses the public API, for the type checkers alone."""

# pyright: standard, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Self, assert_type

from django.db import models
from django.db.models import F
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views import View

from django_redis_lock import AuditEntry, Holder, Lock, LockGroup, Waiter, lock, lock_many, locks
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.celery import TaskAlreadyRunning, TaskSkipped, single_instance_task
from django_redis_lock.fencing import Fenced, FencedManager, FencedQuerySet
from django_redis_lock.views import GuardedRequest, LockedRequest, locked


def synchronous() -> None:
    with lock("a", timeout=10, blocking_timeout=2, metadata={"shop": "7"}) as held:
        assert_type(held, Lock)
        assert_type(held.fence, int)
        assert_type(held.remaining, float)
        assert_type(held.lost, bool)
        assert_type(held.extend(5), bool)
    assert_type(lock("a", None).acquire(blocking=False), bool)


async def asynchronous() -> None:
    async with lock("a") as held:
        assert_type(held, Lock)
        assert_type(await held.aowned(), bool)
    assert_type(locks["default"].aholders(), AsyncIterator[Holder])


def several() -> None:
    with lock_many(["a", "b"], timeout=10) as group:
        assert_type(group, LockGroup)
        assert_type(group.fences, dict[str, int])
        assert_type(group["a"], Lock)


@lock("nightly")
def decorated(number: int) -> str:
    return str(number)


@single_instance_task
def plain(number: int) -> str:
    return str(number)


@single_instance_task(600, key="import:{number}")
def keyed(number: int) -> str:
    return str(number)


@single_instance_task(scope="queue", on_conflict={"queue": "supersede", "run": "wait"})
def superseding(number: int) -> str:
    """Keep its signature."""
    return str(number)


def misspelt() -> None:
    """Be told of what makes no sense: each line is an error, and none is one of itself."""
    single_instance_task(scope="que")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_conflict="rais")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_conflict={"run": "supersede"})  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_unavailable="go")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]


def results(skipped: TaskSkipped, refused: TaskAlreadyRunning) -> None:
    """Read what a duplicate comes to."""
    assert_type(skipped["reason"], str)
    if skipped["holder"] is not None:
        assert_type(skipped["holder"]["ttl"], float | None)
    assert_type(refused.ttl, float | None)


def operators() -> None:
    backend = locks["default"]
    assert_type(backend, BaseLockBackend)
    assert_type(backend.holders("a*"), Iterator[Holder])
    assert_type(backend.holder("a"), Holder | None)
    assert_type(backend.force_release("a", token_id="0", by="ada", reason="stuck"), Holder | None)
    assert_type(backend.waiting("a"), list[Waiter])
    assert_type(backend.history("a", limit=10), list[AuditEntry])
    assert_type(decorated(1), str)
    assert_type(plain(1), str)
    assert_type(keyed(1), str)
    assert_type(superseding(1), str)


@locked("product:{product_id}", timeout=10, blocking_timeout=2)
def buy(request: LockedRequest, product_id: int) -> HttpResponse:
    assert_type(request.lock, Lock)
    return JsonResponse({"fence": request.lock.fence, "buyer": request.POST["buyer"]}, status=201)


@locked("page:{pk}", max_hold=20, methods=["POST"])
def edit(request: GuardedRequest, pk: int) -> HttpResponse:
    """Find none with a method that takes none."""
    assert_type(request.lock, Lock | None)
    return JsonResponse({"fence": request.lock.fence if request.lock else None})


@locked("cart:{request.user.pk}")
async def checkout(request: LockedRequest) -> HttpResponse:
    """Find it in an asynchronous view."""
    await request.lock.aensure_held()
    return JsonResponse({"paid": True})


@locked("product:{pk}")
class Reserve(View):
    """Find it in the methods of a class."""

    def post(self, request: LockedRequest, pk: int) -> HttpResponse:
        """Tell until when it is held."""
        return JsonResponse({"reserved": pk, "for": request.lock.remaining})


urlpatterns = [
    path("buy/<int:product_id>/", buy),
    path("edit/<int:pk>/", edit),
    path("checkout/", checkout),
    path("reserve/<int:pk>/", Reserve.as_view()),
]


class Stock(Fenced):
    """A model whose writes can be fenced."""

    units = models.IntegerField()


def fence() -> None:
    """Write under a fence."""
    with lock("stock:1", timeout=10) as held:
        rows = Stock.objects.fenced(held).filter(pk=1, units__gte=1)
        sold = rows.update(units=F("units") - 1)  # 1, or 0 where none was left
        assert_type(rows, FencedQuerySet[Stock])
        assert_type(sold, int)

    with lock("stock:1", timeout=10) as held:
        stock = Stock.objects.fenced(held).get(pk=1)
        assert_type(stock, Stock)
        stock.units -= 1
        stock.save()

    with lock("stock:1", timeout=10) as held:
        stock.fenced(held).save(update_fields=["units"])

    assert_type(Stock.objects.fenced(7).create(units=1), Stock)


class ShelfQuerySet(FencedQuerySet["Shelf"]):
    """A queryset of one's own."""

    def in_use(self) -> Self:
        return self.filter(emptied=False)


ShelfManager = FencedManager.from_queryset(ShelfQuerySet)


class Shelf(Fenced):
    """A model with a manager of its own."""

    emptied = models.BooleanField(default=False)

    objects = ShelfManager()


def fence_with_a_queryset_of_ones_own() -> None:
    """Keep its type; on the manager mypy knows the methods of a queryset, by its plugin."""
    with lock("shelf:1", timeout=10) as held:
        assert_type(Shelf.objects.fenced(held).filter(pk=1).update(emptied=True), int)
        ShelfQuerySet(Shelf).in_use().fenced(held).update(emptied=True)
