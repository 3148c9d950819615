"""What is measured of a guard: selling for a while, one rush, those who wait, and bystanders."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.load.buyers import NO_ANSWER, Answer, Crowd
from benchmarks.load.shop.names import SOLD, SOLD_OUT, UNPAID
from benchmarks.load.stage import Stage
from benchmarks.stats import percentile

ENDLESS = 10_000_000
"""So much stock that a product is never sold out."""
LEAD = 1.0
"""Seconds at the start of a sale whose answers are not timed."""
SETTLED = 5
"""So many readings in a row have to agree before the number of connections counts as settled."""
PATIENCE = 60.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One load: so many buyers on so many products, and what the payment takes."""

    slug: str
    title: str
    products: int
    buyers: int
    payment: str = "none"


def sale(stage: Stage, guard: str, cell: Cell, seconds: float) -> Row:
    """Let the buyers buy without end, one order after the other, for so many seconds."""
    products = stage.shelf.put(cell.products, ENDLESS)
    commands, requests = stage.commands(), stage.requests()
    processor = stage.processor_seconds()
    began = time.monotonic()
    end = began + LEAD + seconds
    paths = [_path(guard, product, cell.payment) for product in products]
    answers = asyncio.run(_sell_until(stage, cell.buyers, end, paths))
    took = time.monotonic() - began
    orders = stage.shelf.orders(products)
    return {
        **summary(answers, began + LEAD, end, cell.buyers),
        "oversold": oversold(orders, cell.products * ENDLESS, stage.shelf.left(products)),
        "requests_per_order": (stage.requests() - requests) / max(orders, 1),
        "commands_per_order": (stage.commands() - commands) / max(orders, 1),
        "processor_ms_per_order": 1000 * (stage.processor_seconds() - processor) / max(orders, 1),
        "seconds": took,
    }


def summary(answers: Iterable[Answer], start: float, end: float, buyers: int) -> Row:
    """Return the figures of a sale between two moments.

    A rate counts what was answered in between. A wait counts whenever its answer came after the
    start, so also that of a buyer who was still waiting at the end.
    """
    answers = list(answers)
    sold = [answer for answer in answers if answer.status == SOLD]
    waits = [answer.seconds for answer in sold if answer.ended > start] or [float("nan")]
    served = Counter(answer.buyer for answer in sold)
    return {
        "orders_per_second": sum(start < answer.ended <= end for answer in sold) / (end - start),
        "p50": percentile(waits, 50),
        "p99": percentile(waits, 99),
        "longest": max(waits),
        "least_served": min(served[buyer] for buyer in range(buyers)),
        "most_served": max(served.values(), default=0),
        "errors": sum(answer.status not in (SOLD, SOLD_OUT, UNPAID) for answer in answers),
    }


def oversold(orders: int, stock: int, left: int) -> int:
    """Return how many orders there are without a unit that has left the shelf for them."""
    return orders - (stock - left)


def rush(stage: Stage, guard: str, buyers: int) -> Row:
    """Let buyers come at one moment for half as many units, with a payment to make."""
    (product,) = stage.shelf.put(1, buyers // 2)
    answers = asyncio.run(_sell_once(stage, buyers, _path(guard, product, "slow")))
    statuses = Counter(answer.status for answer in answers)
    orders, left = stage.shelf.orders([product]), stage.shelf.left([product])
    return {
        "units": buyers // 2,
        "buyers": buyers,
        "orders": orders,
        "oversold": oversold(orders, buyers // 2, left),
        "paid_for_nothing": statuses[UNPAID],
        "errors": buyers - statuses[SOLD] - statuses[SOLD_OUT] - statuses[UNPAID],
    }


def waiting(stage: Stage, guard: str, buyers: int, watch: float) -> Row:
    """Let buyers wait for one whose payment hangs; count connections and commands meanwhile."""
    return asyncio.run(_wait_for_one(stage, guard, buyers, watch))


def bystanders(stage: Stage, guard: str, cell: Cell, lookers: int, seconds: float) -> Row:
    """Let some look at a product that nobody buys, while many buy another one."""
    return asyncio.run(_look_on(stage, guard, cell, lookers, seconds))


async def _sell_until(stage: Stage, buyers: int, end: float, paths: list[str]) -> list[Answer]:
    async with Crowd(stage.port, buyers) as crowd:
        await crowd.buy_until(end, paths)
        return crowd.answers


async def _sell_once(stage: Stage, buyers: int, path: str) -> list[Answer]:
    async with Crowd(stage.port, buyers) as crowd:
        await crowd.buy_once(path)
        return crowd.answers


async def _wait_for_one(stage: Stage, guard: str, buyers: int, watch: float) -> Row:
    (product,) = stage.shelf.put(1, ENDLESS)
    path = _path(guard, product, "held")
    stage.hold.touch()
    async with Crowd(stage.port, 1) as holder, Crowd(stage.port, buyers) as crowd:
        held = asyncio.ensure_future(holder.buy_once(path))
        await _until(lambda: stage.arrivals == 1, "the buyer whose payment hangs")
        alone = await _settled(stage)
        queue = asyncio.ensure_future(crowd.buy_once(path))
        await _until(lambda: stage.arrivals == 1 + buyers, "those who wait behind")
        together = await _settled(stage)
        commands = stage.commands()
        await asyncio.sleep(watch)
        commands = stage.commands() - commands
        through = [answer for answer in crowd.answers if answer.status == SOLD]
        began = time.monotonic()
        stage.hold.unlink()
        await held
        await queue
        answers = holder.answers + crowd.answers
        took = time.monotonic() - began
    redis, listening, database = (
        after - before for after, before in zip(together, alone, strict=True)
    )
    return {
        "buyers": buyers,
        "processes": len(stage.processes()),
        "redis_connections": redis,
        "redis_listening": listening,
        "database_connections": database,
        "commands_per_second": commands / watch,
        "drained_per_second": len(answers) / took,
        "barged": len(through),
        "errors": sum(answer.status != SOLD for answer in answers),
        "oversold": oversold(stage.shelf.orders([product]), ENDLESS, stage.shelf.left([product])),
    }


async def _look_on(stage: Stage, guard: str, cell: Cell, lookers: int, seconds: float) -> Row:
    hot, cold = stage.shelf.put(2, ENDLESS)
    began = time.monotonic()
    end = began + LEAD + seconds
    async with Crowd(stage.port, cell.buyers) as crowd, Crowd(stage.port, lookers) as others:
        await asyncio.gather(
            crowd.buy_until(end, [_path(guard, hot, cell.payment)]),
            others.look_until(end, f"/product/{cold}/", pause=0.02),
        )
    waits = [answer.seconds for answer in others.answers if answer.ended > began + LEAD]
    return {
        **summary(crowd.answers, began + LEAD, end, cell.buyers),
        "bystander_p50": percentile(waits, 50),
        "bystander_p99": percentile(waits, 99),
        "bystander_longest": max(waits),
        "bystander_errors": sum(answer.status == NO_ANSWER for answer in others.answers),
        "oversold": oversold(stage.shelf.orders([hot]), ENDLESS, stage.shelf.left([hot])),
    }


async def _settled(stage: Stage) -> tuple[int, int, int]:
    """Return the numbers of connections once they have stopped changing."""
    seen: list[tuple[int, int, int]] = []

    def same() -> bool:
        seen.append((*stage.redis_connections(), stage.database_connections()))
        return len(seen) >= SETTLED and len(set(seen[-SETTLED:])) == 1

    await _until(same, "a number of connections that stays", pause=0.2)
    return seen[-1]


async def _until(condition: Callable[[], bool], what: str, pause: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not come within {PATIENCE:g} s: {what}")
        await asyncio.sleep(pause)


def _path(guard: str, product: int, payment: str) -> str:
    return f"/buy/{guard}/{product}/{payment}/"


def in_any_order(guards: list[str]) -> list[str]:
    """Return the guards shuffled, so that none always has the same neighbour before it."""
    return random.sample(guards, len(guards))
