"""How a project uses the public API, for the type checkers alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any, assert_type

from django.db import models
from django.db.models import F
from django.http import HttpResponse
from django.test import TestCase
from django.views import View
from django_tasks import task

from django_redis_lock import (
    AuditEntry,
    Holder,
    Limit,
    Lock,
    LockGroup,
    Waiter,
    lock,
    lock_many,
    locks,
    semaphore,
    testing,
)
from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.exceptions import (
    InvalidLockBackend,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    StaleFence,
)
from django_redis_lock.fencing import Fenced, FencedQuerySet
from django_redis_lock.management import LockedCommand
from django_redis_lock.operators import Result, release_shown
from django_redis_lock.tasks import single_instance_task
from django_redis_lock.views import GuardedRequest, LockedRequest, locked


def synchronous() -> None:
    with lock("a", timeout=10, blocking_timeout=2, metadata={"shop": "7"}) as held:
        assert_type(held, Lock)
        assert_type(held.fence, int | Any)
        assert_type((held.guarded, held.is_held_here, held.lost), tuple[bool, bool, bool])
        assert_type((held.remaining, held.timeout), tuple[float, float | None])
        assert_type((held.extend(5), held.reacquire()), tuple[bool, bool])
        assert_type((held.owned(), held.locked()), tuple[bool, bool])
        held.ensure_held()
    assert_type(lock("a", None).acquire(blocking=False, blocking_timeout=2.5), bool)
    held.release()
    ticket = lock("a", reentrant=True).detach(30, {"order": "7"})
    assert_type((ticket, held.ticket), tuple[str, str])
    assert_type(lock("a", auto_renew=True).take_over(ticket), bool)


async def asynchronous() -> None:
    async with lock("a") as held:
        assert_type(held, Lock)
        assert_type((await held.aowned(), await held.alocked()), tuple[bool, bool])
        assert_type(await held.aextend(5, replace_ttl=True), bool)
        assert_type(await held.areacquire(), bool)
        await held.aensure_held()
    assert_type(await lock("a").atake_over(await held.adetach(30)), bool)
    assert_type(await lock("a").aacquire(blocking_timeout=2), bool)
    await held.arelease()
    backend = locks["default"]
    assert_type(backend.aholders(), AsyncIterator[Holder])
    assert_type(await backend.aholder("a"), Holder | None)
    assert_type(await backend.awaiting("a", limit=3), list[Waiter])
    assert_type(await backend.ahistory("a"), list[AuditEntry])
    assert_type(await backend.aforce_release("a"), Holder | None)


def sharing() -> None:
    with semaphore("a", 4, timeout=10, max_waiters=20) as permit:
        assert_type(permit, Lock)
    with lock("a", shared=True, max_waiters=20), lock("a") as held:
        held.downgrade()
        assert_type(held.sharing.limit, int | None)
    with lock_many(["a", "b"], shared={"c"}, limit={"d": 2}, on_unavailable="run") as group:
        assert_type(group, LockGroup)
        assert_type(group.fences, dict[str, int])
        assert_type(group["a"], Lock)
        assert_type(group.names, tuple[str, ...])


def operators() -> None:
    backend = locks["default"]
    assert_type(backend, BaseLockBackend)
    assert_type(backend.can_share, bool)
    backend.set_limit("a", 6, by="ada")
    assert_type(backend.limits(), list[Limit])
    assert_type(backend.holders("a*"), Iterator[Holder])
    assert_type(backend.holder("a"), Holder | None)
    assert_type(backend.force_release("a", token_id="0", by="ada", reason="stuck"), Holder | None)
    assert_type(backend.waiting("a"), list[Waiter])
    assert_type(backend.history("a", limit=10), list[AuditEntry])
    for outcome in release_shown(backend.holders_of(["a", "b"]), by="ada", reason="stuck"):
        assert_type((outcome.result, outcome.holder), tuple[Result, Holder | None])


def described(holder: Holder, waiter: Waiter, entry: AuditEntry) -> None:
    assert_type((holder.acquired_at, holder.ttl), tuple[datetime | None, float | None])
    assert_type((holder.fence, holder.metadata), tuple[int | None, Mapping[str, str]])
    assert_type((waiter.since, waiter.waited), tuple[datetime | None, float | None])
    assert_type((entry.at, entry.reason), tuple[datetime | None, str])


def errors() -> str:
    try:
        with lock("a"):
            return ""
    except (LockNotAcquired, LockUnavailable, LockLost, LockNotOwned, StaleFence) as error:
        return error.name
    except LockError as error:
        return error.name
    except InvalidLockBackend as error:
        return str(error)


@locked("product:{product_id}", timeout=10, blocking_timeout=2)
def buy(request: LockedRequest, product_id: int) -> HttpResponse:
    assert_type(request.lock, Lock)
    return HttpResponse(request.lock.fence)


@locked("page:{pk}", max_hold=20, methods=["POST"])
async def edit(request: GuardedRequest, pk: int) -> HttpResponse:
    assert_type(request.lock, Lock | None)
    return HttpResponse(request.lock.fence if request.lock else None)


@locked("product:{pk}")
class Reserve(View):
    def post(self, request: LockedRequest, pk: int) -> HttpResponse:
        return HttpResponse(request.lock.remaining)


class Stock(Fenced):
    units: models.IntegerField[int, int] = models.IntegerField()


def fence() -> None:
    with lock("stock:1", timeout=10) as held:
        rows = Stock.objects.fenced(held).filter(pk=1, units__gte=1)
        assert_type(rows, FencedQuerySet[Stock])
        assert_type(rows.update(units=F("units") - 1), int)
        stock = rows.get(pk=1)
        assert_type(stock, Stock)
        stock.fenced(held).save(update_fields=["units"])


@task
@single_instance_task(key="report:{shop}", on_conflict="raise")
def report(shop: int) -> str:
    return str(shop)


@single_instance_task
@task
async def mail(shop: int) -> str:
    return str(shop)


def run_tasks() -> None:
    assert_type(report.enqueue(7).return_value, str | None)
    mail.enqueue(shop=7)
    single_instance_task(on_conflict="park")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]


class Command(LockedCommand):
    lock_name = "import:{shop}"
    lock_timeout = 60
    lock_wait = None

    def handle(self, *args: object, **options: object) -> None:
        self.lock.ensure_held()


class Tests(testing.LockTestMixin, TestCase):
    lock_space = "settings"

    def test_purchase(self) -> None:
        recorded = self.enterContext(testing.LockRecorder())
        with testing.held_by_another("a", timeout=5, using="shop"), testing.unavailable():
            testing.expire_now("a", using="shop")
        testing.lose("a")
        assert_type(recorded.acquired, list[str])
        assert_type(recorded.events, list[tuple[str, str]])
        testing.assert_no_locks_held()
