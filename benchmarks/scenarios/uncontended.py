"""Acquire and release a lock that nothing else wants, under a new name each time."""

import asyncio
from time import perf_counter

from benchmarks.bench import Bench, Chart, Scenario, Seat, warm
from benchmarks.contenders import LOCKS, OursAsync, OursRenewed, RedisPyAsync
from benchmarks.frame.figures import count_spread, ratio_spread, ratios, spread
from benchmarks.frame.table import Column

BATCH = 20
"""Pairs between two looks at the clock."""

ASYNC = [OursAsync.slug, RedisPyAsync.slug]
SLUGS = [*(lock.slug for lock in LOCKS), OursRenewed.slug, *ASYNC]


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
    """Do the same in an event loop, without timing the first batch."""

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
    with bench.crews(SLUGS) as crews:
        for slug in crews:
            if slug not in ASYNC:
                bench.attempt(slug, crews[slug].call, warm)

        def once(slug: str, turn: int) -> float:
            loop = async_pairs if slug in ASYNC else pairs
            return float(crews[slug].call(loop, f"bench:{slug}:{turn}", bench.sizes.pair_seconds))

        rates = bench.rounds(bench.sizes.pair_rounds, SLUGS, once)
    for slug in bench.fit(SLUGS):
        base = RedisPyAsync.slug if slug in ASYNC else "redis-py"
        bench.rows[slug] = {
            "pairs_per_second": spread(rates[slug]),
            "ratio": ratios(rates[slug], rates[base]),
            "rounds": rates[slug],
        }


SCENARIO = Scenario(
    name="uncontended",
    title="Uncontended: acquire and release, a new name each time",
    how=(
        "One process, one connection, a fixed lease. The contenders alternate in each round, in "
        "random order; the ratio is taken within each round, to redis-py's Lock (asyncio: to "
        "redis.asyncio's). Median of the rounds (range)."
    ),
    measure=measure,
    seconds=lambda sizes: 5 + sizes.pair_rounds * len(SLUGS) * sizes.pair_seconds,
    columns=(
        Column("pairs_per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
    ),
    charts=(Chart("pairs_per_second.median", "pairs per second; higher is better"),),
)
