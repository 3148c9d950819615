"""What is measured of a guard: sales, a rush, buyers who wait, and bystanders."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.frame.figures import percentile
from benchmarks.frame.table import Row
from benchmarks.load.buyers import NO_ANSWER, Answer, Crowd
from benchmarks.load.plan import LEAD, UNITS, Cell
from benchmarks.load.shop.names import DECLINED, SOLD, SOLD_OUT, UNPAID
from benchmarks.load.stage import Stage

ENDLESS = 10_000_000
"""So much stock that a product never sells out."""
ROWS = 60_000
"""So many units in rows that a sale does not sell out: no shop here sells 8,000 a second."""
DECLINES = 10
"""How many buyers come before a rush, whose payments are declined."""
SETTLED = 5
"""The number of connections has settled once so many readings in a row agree."""
PATIENCE = 60.0
WATCH = 2
"""Seconds for which commands are counted while all wait."""


def sale(stage: Stage, guard: str, cell: Cell, seconds: float) -> Row:
    """Let the buyers send one order after the other for some seconds."""
    products, stock = _endless(stage, guard, cell.products)
    commands, requests = stage.commands(), stage.requests()
    cpu = stage.site.cpu_seconds()
    began = time.monotonic()
    end = began + LEAD + seconds
    paths = [_path(guard, product, cell.payment) for product in products]
    answers = asyncio.run(_sell_until(stage, cell.buyers, end, paths))
    took = time.monotonic() - began
    orders = stage.shelf.orders(products)
    return {
        **summary(answers, began + LEAD, end, cell.buyers),
        "oversold": oversold(orders, stock, stage.shelf.left(products)),
        "requests_per_order": (stage.requests() - requests) / max(orders, 1),
        "commands_per_order": (stage.commands() - commands) / max(orders, 1),
        "processor_ms_per_order": 1000 * (stage.site.cpu_seconds() - cpu) / max(orders, 1),
        "seconds": took,
    }


def summary(answers: Iterable[Answer], start: float, end: float, buyers: int) -> Row:
    """Return the figures of a sale between two moments.

    A rate counts the answers in between. A wait counts if its answer came after the start, so
    those of buyers who still waited at the end count as well. There is stock for all, so every
    other answer is an error.
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
        "errors": sum(answer.status != SOLD for answer in answers),
    }


def oversold(orders: int, stock: int, left: int) -> int:
    """Return how many orders there are beyond the units that have left the stock."""
    return orders - (stock - left)


def rush(stage: Stage, guard: str, buyers: int) -> Row:
    """Let buyers come at one moment for half as many units, with a payment to make.

    Some whose payments are declined come before them, and must leave every unit to the others.
    """
    units = buyers // 2
    products = stage.shelf.put(1, units, in_rows=guard == UNITS)
    refused = asyncio.run(_sell_once(stage, DECLINES, _path(guard, products[0], "declined")))
    answers = asyncio.run(_sell_once(stage, buyers, _path(guard, products[0], "slow")))
    statuses = Counter(answer.status for answer in answers)
    proper = sum(statuses[status] for status in (SOLD, SOLD_OUT, UNPAID))
    orders = stage.shelf.orders(products)
    began = min(answer.began for answer in answers)
    sold = [answer.ended - began for answer in answers if answer.status == SOLD]
    sold_out = [answer.ended - began for answer in answers if answer.status == SOLD_OUT]
    return {
        "units": units,
        "buyers": buyers,
        "orders": orders,
        "oversold": oversold(orders, units, stage.shelf.left(products)),
        "unsold": max(0, units - orders),
        "paid_for_nothing": statuses[UNPAID],
        "sold_within": max(sold, default=float("nan")),
        "told_sold_out": percentile(sold_out or [float("nan")], 50),
        "errors": buyers - proper + sum(answer.status != DECLINED for answer in refused),
    }


async def _sell_until(stage: Stage, buyers: int, end: float, paths: list[str]) -> list[Answer]:
    async with Crowd(stage.site.port, buyers) as crowd:
        await crowd.buy_until(end, paths)
        return crowd.answers


async def _sell_once(stage: Stage, buyers: int, path: str) -> list[Answer]:
    async with Crowd(stage.site.port, buyers) as crowd:
        await crowd.buy_once(path)
        return crowd.answers


async def waiting(stage: Stage, guard: str, buyers: int) -> Row:
    """Let buyers wait for one whose payment hangs; count connections and commands meanwhile."""
    products, stock = _endless(stage, guard, 1)
    path, port = _path(guard, products[0], "held"), stage.site.port
    stage.hold.touch()
    async with Crowd(port, 1) as holder, Crowd(port, buyers) as crowd:
        held = asyncio.ensure_future(holder.buy_once(path))
        await _until(lambda: stage.arrivals == 1, "the buyer whose payment hangs")
        alone = await _settled(stage)
        queue = asyncio.ensure_future(crowd.buy_once(path))
        await _until(lambda: stage.arrivals == 1 + buyers, "the buyers who wait")
        together = await _settled(stage)
        commands = stage.commands()
        await asyncio.sleep(WATCH)
        commands = stage.commands() - commands
        barged = sum(answer.status == SOLD for answer in crowd.answers)
        began = time.monotonic()
        stage.hold.unlink()
        await held
        await queue
        answers = holder.answers + crowd.answers
        took = time.monotonic() - began
    redis, listening, database = (
        after - before for after, before in zip(together, alone, strict=True)
    )
    processes = len(stage.site.processes())
    return {
        "buyers": buyers,
        "processes": processes,
        "redis_connections": redis,
        "redis_listening": listening,
        "listening_per_process": listening / processes,
        "database_connections": database,
        "commands_per_second": commands / WATCH,
        "drained_per_second": len(answers) / took,
        "barged": barged,
        "errors": sum(answer.status != SOLD for answer in answers),
        "oversold": oversold(stage.shelf.orders(products), stock, stage.shelf.left(products)),
    }


async def bystanders(stage: Stage, guard: str, cell: Cell, lookers: int, seconds: float) -> Row:
    """Let some look at a product that nobody buys, while many buy another one."""
    (cold,) = stage.shelf.put(1, ENDLESS)
    hot, stock = _endless(stage, guard, 1)
    port, began = stage.site.port, time.monotonic()
    end = began + LEAD + seconds
    async with Crowd(port, cell.buyers) as crowd, Crowd(port, lookers) as others:
        await asyncio.gather(
            crowd.buy_until(end, [_path(guard, hot[0], cell.payment)]),
            others.look_until(end, f"/product/{cold}/", pause=0.02),
        )
    waits = [answer.seconds for answer in others.answers if answer.ended > began + LEAD]
    return {
        **summary(crowd.answers, began + LEAD, end, cell.buyers),
        "bystander_p50": percentile(waits, 50),
        "bystander_p99": percentile(waits, 99),
        "bystander_longest": max(waits),
        "bystander_errors": sum(answer.status == NO_ANSWER for answer in others.answers),
        "oversold": oversold(stage.shelf.orders(hot), stock, stage.shelf.left(hot)),
    }


def _endless(stage: Stage, guard: str, products: int) -> tuple[list[int], int]:
    """Put products on the shelf that don't sell out; return their ids and all their stock."""
    in_rows = guard == UNITS
    each = ROWS // products if in_rows else ENDLESS
    return stage.shelf.put(products, each, in_rows=in_rows), products * each


async def _settled(stage: Stage) -> tuple[int, int, int]:
    seen: list[tuple[int, int, int]] = []

    def same() -> bool:
        seen.append(stage.connections())
        return len(seen) >= SETTLED and len(set(seen[-SETTLED:])) == 1

    await _until(same, "a settled number of connections", pause=0.2)
    return seen[-1]


async def _until(condition: Callable[[], bool], what: str, pause: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        await asyncio.sleep(pause)


def _path(guard: str, product: int, payment: str) -> str:
    return f"/buy/{guard}/{product}/{payment}/"
