"""Acquire and release a lock that nobody else wants, always under a fresh name."""

import asyncio
import random
from time import perf_counter

from ..contenders import LOCKS, OursAsync, OursRenewed, RedisPyAsync
from ..model import Bench, Chart, Column, Scenario
from ..show import count_spread, ratio_spread
from ..stats import ratios, spread
from ..workers import Seat, warm

BATCH = 20
"""Pairs between two looks at the clock."""

ASYNC = (OursAsync, RedisPyAsync)
SLUGS = [*(lock.slug for lock in LOCKS), OursRenewed.slug, *(lock.slug for lock in ASYNC)]


def pairs(seat: Seat, prefix: str, seconds: float) -> float:
    """Return the pairs per second of a loop that lasts some seconds."""
    lock = seat.contender.lock
    done = 0
    began = perf_counter()
    while (elapsed := perf_counter() - began) < seconds:
        for number in range(done, done + BATCH):
            handle = lock(f"{prefix}:{number}")
            handle.acquire()
            handle.release()
        done += BATCH
    return done / elapsed


def async_pairs(seat: Seat, prefix: str, seconds: float) -> float:
    """Do the same in an event loop, the first batch of which is not timed."""

    async def loop() -> float:
        lock = seat.contender.open()
        done = -BATCH
        began = elapsed = 0.0
        while elapsed < seconds:
            for number in range(done, done + BATCH):
                handle = lock(f"{prefix}:{number}")
                await handle.acquire()
                await handle.release()
            done += BATCH
            if not done:
                began = perf_counter()
            elapsed = perf_counter() - began if done else 0.0
        await seat.contender.close()
        return done / elapsed

    return asyncio.run(loop())


def measure(bench: Bench) -> None:
    """Let everyone run once in each round, in an order drawn anew."""
    asynchronous = [contender.slug for contender in ASYNC]
    rates: dict[str, list[float]] = {slug: [] for slug in SLUGS}
    with bench.crews(SLUGS) as crews:
        for slug in bench.fit([slug for slug in crews if slug not in asynchronous]):
            bench.attempt(slug, crews[slug].call, warm)
        for number in range(bench.sizes.pair_rounds):
            for slug in random.sample(SLUGS, len(SLUGS)):
                if slug not in bench.fit(SLUGS):
                    continue
                loop = async_pairs if slug in asynchronous else pairs
                arguments = (loop, f"bench:{slug}:{number}", bench.sizes.pair_seconds)
                rate = bench.attempt(slug, crews[slug].call, *arguments)
                if rate is not None:
                    rates[slug].append(rate)
    for slug in bench.fit(SLUGS):
        base = "redis-py-async" if slug in asynchronous else "redis-py"
        bench.rows[slug] = {
            "pairs_per_second": spread(rates[slug]),
            "ratio": ratios(rates[slug], rates[base]),
            "rounds": rates[slug],
        }


SCENARIO = Scenario(
    name="uncontended",
    title="Uncontended: acquire and release, a fresh name every time",
    how=(
        "One process, one connection, a fixed lease. Rounds of the contenders alternate in an "
        "order drawn anew; the ratio is taken within each round, to redis-py's Lock (asyncio: to "
        "redis.asyncio's). Median of the rounds (least to greatest)."
    ),
    measure=measure,
    columns=(
        Column("pairs_per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
    ),
    charts=(
        Chart(
            "Uncontended acquire + release",
            {"pairs_per_second.median": ""},
            "pairs per second",
            "higher",
        ),
    ),
)
