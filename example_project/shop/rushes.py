"""A rush: many buyers over HTTP who all want the same product, and the results."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from django.core.cache import cache
from django.db import connections

from django_redis_lock import lock, locks
from example_project.shop.buyers import Answer, buy_one, rush
from example_project.shop.models import Order, Product

MAX_BUYERS = 300
MAX_UNITS = 1000
KEPT_SECONDS = 3600
TAKEOVER_SECONDS = 30
"""How long the lock of a rush waits for the thread that runs it."""
SAMPLE_SECONDS = 0.05
LEAD_SECONDS = 5.0
"""How long the others wait at most until the one that stalls holds the lock."""

SOLD, SOLD_OUT, REFUSED, FAILED = "sold", "sold_out", "refused", "failed"
_MEANING = {201: SOLD, 410: SOLD_OUT, 409: REFUSED, 503: REFUSED}


@dataclass(frozen=True)
class Plan:
    """The parameters of a rush."""

    product_id: int
    guard: str
    label: str
    buyers: int
    units: int
    stall: bool = False
    """Whether one more buyer comes first and stalls for longer than the lease of its lock."""


@dataclass
class Record:
    """The progress of a rush; every process of the shop reads it from the cache."""

    plan: Plan
    running: bool = True
    seconds: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds since the start, orders, and the stock by the shop's count."""
    stalled: str = ""
    """What the shop answered the buyer that stalled."""

    def count(self, status: int) -> str:
        meaning = _MEANING.get(status, FAILED)
        self.answers[meaning] = self.answers.get(meaning, 0) + 1
        return meaning

    def as_dict(self) -> dict[str, Any]:
        """Return the record for JSON, with its totals."""
        orders = self.samples[-1][1] if self.samples else 0
        return {**asdict(self), "orders": orders, "oversold": max(0, orders - self.plan.units)}


def lock_name(product_id: int) -> str:
    return f"rush:{product_id}"


def last_rush(product_id: int) -> dict[str, Any] | None:
    """Return the record of the current or last rush."""
    record: dict[str, Any] | None = cache.get(f"rush:{product_id}")
    return record


def results(product_id: int) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = cache.get(f"results:{product_id}", {})
    return list(found.values())


def restock(plan: Plan) -> None:
    """Delete the orders and set the stock."""
    Order.objects.filter(product=plan.product_id).delete()
    Product.objects.filter(pk=plan.product_id).update(stock=plan.units)


def start(plan: Plan, ticket: str, host: str, port: int) -> None:
    """Run a rush in a thread, which takes over the lock of the ticket."""
    _write(Record(plan))
    threading.Thread(target=_run, args=(plan, ticket, host, port), daemon=True).start()


def _run(plan: Plan, ticket: str, host: str, port: int) -> None:
    held = lock(lock_name(plan.product_id))
    if not held.take_over(ticket):
        return
    record = Record(plan)
    began = time.monotonic()
    sampled = 0.0
    path = f"/buy/{plan.product_id}/?guard={plan.guard}"
    stalling: list[Future[int]] = []

    def let_one_stall() -> None:
        if plan.stall:
            stalling.append(_stall(plan, host, port, path))

    try:
        for event in rush(host, port, path, plan.buyers, let_one_stall):
            if not isinstance(event, Answer):
                began = time.monotonic()  # buyers are still opening the page
                continue
            record.count(event.status)
            record.seconds = time.monotonic() - began
            if record.seconds - sampled >= SAMPLE_SECONDS:
                sampled = record.seconds
                _sample(record)
                _write(record)
        for one in stalling:
            record.stalled = record.count(one.result())
            record.seconds = time.monotonic() - began
    finally:
        record.running = False
        _sample(record)
        summary = {key: value for key, value in record.as_dict().items() if key != "samples"}
        found = cache.get(f"results:{plan.product_id}", {})
        cache.set(f"results:{plan.product_id}", {**found, plan.label: summary}, KEPT_SECONDS)
        _write(record)  # who sees that the rush is over sees its results, too
        connections.close_all()
        held.release()


def _stall(plan: Plan, host: str, port: int, path: str) -> Future[int]:
    """Let one buyer come first; return once it holds the lock, if the guard has one."""
    pool = ThreadPoolExecutor(max_workers=1)
    status = pool.submit(buy_one, host, port, f"{path}&stall=1", "the stalling buyer")
    pool.shutdown(wait=False)
    until = time.monotonic() + LEAD_SECONDS
    name = f"product:{plan.product_id}"
    while plan.guard != "none" and locks["default"].holder(name) is None:
        if status.done() or time.monotonic() > until:
            break
        time.sleep(SAMPLE_SECONDS)
    return status


def _sample(record: Record) -> None:
    product = Product.objects.get(pk=record.plan.product_id)
    record.samples.append((round(record.seconds, 3), product.orders.count(), product.stock))


def _write(record: Record) -> None:
    cache.set(f"rush:{record.plan.product_id}", record.as_dict(), KEPT_SECONDS)
