"""How a project with Celery uses the public API, for the type checkers alone. A guarded task keeps
the type that Celery gives it, whichever decorator is above the other."""

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


def number_for(shop_id: int, **_: object) -> int:
    return 5 if shop_id else 1


@shared_task
@single_instance_task(600, key="import:{shop_id}", concurrency=number_for)
def import_products(shop_id: int, full: bool = False) -> str:
    return f"{shop_id} {full}"


@shared_task
@single_instance_task
def nightly_report() -> int:
    assert_type(single_instance_task.current(), Lock)
    return single_instance_task.current().fence


@single_instance_task(scope="queue_and_run", unique_on=["shop_id"])
@shared_task
def export_products(shop_id: int) -> str:
    return str(shop_id)


@app.task
@single_instance_task(on_conflict="park", turns="{tenant_id}", queue_limit=1000, beyond="retry")
def ask_supplier(product_id: int, tenant_id: int) -> None: ...


def decide(conflict: Conflict) -> str:
    assert_type((conflict.task_id, conflict.holder), tuple[str | None, Holder | None])
    assert_type((conflict.args, conflict.kwargs), tuple[tuple[Any, ...], dict[str, Any]])
    assert_type(conflict.skip(), TaskSkipped)
    assert_type(conflict.error("not now"), TaskAlreadyRunning)
    return f"{conflict.moment} {conflict.key} {conflict.who} {conflict.described}"


@shared_task
@single_instance_task(
    on_conflict={"queue": "supersede", "run": decide}, scope="queue", supersede_for=60
)
def index(page: str) -> str:
    return page


def calls() -> None:
    assert_type(import_products(7, full=True), str)
    assert_type(import_products.delay(7), AsyncResult[str])
    assert_type(import_products.apply_async((7,), countdown=60), AsyncResult[str])
    assert_type(import_products.s(7)(), str)
    assert_type(nightly_report.delay().get(), int)
    chain(import_products.s(7), nightly_report.si()).delay()
    export_products.delay(7)


def mistakes() -> None:
    """Each line is an error."""
    import_products("seven")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    import_products.delay("seven")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    nightly_report.delay(7)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    single_instance_task(scope="que")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
    single_instance_task(on_conflict="park", queue_limit=1000, beyond="wait")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]


class Beat(LeaderScheduler):
    scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    lock_name = "beat:shop"
    lease = 10


def results(result: TaskSkipped, refused: TaskAlreadyRunning) -> None:
    assert_type(result["reason"], str)
    if result["holder"] is not None:
        assert_type(result["holder"]["ttl"], float | None)
    assert_type(refused.ttl, float | None)
    assert_type(skipped["shop.import"] + parked["shop.import"], int)
