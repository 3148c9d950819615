"""How a project with Celery uses the public API, for the type checkers alone.

A guarded task keeps the type that Celery gives it, whichever decorator is above the other.
"""

from __future__ import annotations

from typing import Any, assert_type

from celery import Celery, chain, shared_task
from celery.result import AsyncResult

from django_redis_lock import Holder, Lock
from django_redis_lock.celery import (
    Conflict,
    LeaderScheduler,
    TaskAlreadyRunning,
    TaskSkipped,
    parked,
    single_instance_task,
    skipped,
)

app = Celery("shop")


@shared_task
@single_instance_task(600, key="import:{shop_id}")
def import_products(shop_id: int, full: bool = False) -> str:
    """Keep the signature below Celery's decorator, with options."""
    return f"{shop_id} {full}"


@shared_task
@single_instance_task
def nightly_report() -> int:
    """Keep it below Celery's decorator, without options."""
    assert_type(single_instance_task.current(), Lock)
    return single_instance_task.current().fence


@single_instance_task(scope="queue_and_run", unique_on=["shop_id"])
@shared_task
def export_products(shop_id: int) -> str:
    """Keep the type of the task above Celery's decorator."""
    return str(shop_id)


def number_for(shop_id: int, **_: object) -> int:
    return 5 if shop_id else 1


@shared_task
@single_instance_task(key="orders:{shop_id}", concurrency=number_for)
def fetch_orders(shop_id: int) -> str:
    """Let a function say how many run at once."""
    return str(shop_id)


@app.task
@single_instance_task(on_conflict="park", turns="{tenant_id}", queue_limit=1000, beyond="retry")
def ask_supplier(product_id: int, tenant_id: int) -> None:
    """Bound the queue of a task that is parked, and serve tenants in turn."""


def said(conflict: Conflict) -> str:
    """Decide what becomes of a duplicate."""
    assert_type(conflict.task_id, str | None)
    assert_type(conflict.holder, Holder | None)
    assert_type(conflict.args, tuple[Any, ...])
    assert_type(conflict.kwargs, dict[str, Any])
    assert_type(conflict.skip(), TaskSkipped)
    assert_type(conflict.error("not now"), TaskAlreadyRunning)
    return f"{conflict.moment} {conflict.key} {conflict.who} {conflict.described}"


@shared_task
@single_instance_task(
    on_conflict={"queue": "supersede", "run": said}, scope="queue", supersede_for=60
)
def index(page: str) -> str:
    return page


def calls() -> None:
    """Call, send and chain."""
    assert_type(import_products(7, full=True), str)
    assert_type(import_products.delay(7), AsyncResult[str])
    assert_type(import_products.delay(7, full=True).get(), str)
    assert_type(import_products.apply_async((7,), countdown=60), AsyncResult[str])
    assert_type(import_products.s(7)(), str)
    assert_type(nightly_report.delay().get(), int)
    assert_type(index.delay("a").get(), str)
    chain(import_products.s(7), nightly_report.si()).delay()
    export_products.delay(7)


def miscalled() -> None:
    """Be told of what does not fit the task: each line is an error."""
    import_products("seven")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    import_products.delay("seven")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    import_products.delay(7, True, 9)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    nightly_report.delay(7)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def misspelt() -> None:
    """Be told of what makes no sense: each line is an error, and none is one of itself."""
    single_instance_task(scope="que")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_conflict="park", queue_limit=1000, beyond="wait")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_conflict="rais")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]


class Beat(LeaderScheduler):
    """Lead another scheduler."""

    scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    lock_name = "beat:shop"
    lease = 10


def results(result: TaskSkipped, refused: TaskAlreadyRunning) -> None:
    """Read what a duplicate comes to."""
    assert_type(result["reason"], str)
    if result["holder"] is not None:
        assert_type(result["holder"]["ttl"], float | None)
    assert_type(refused.ttl, float | None)
    assert_type(skipped["shop.import"] + parked["shop.import"], int)
