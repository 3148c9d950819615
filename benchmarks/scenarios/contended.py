"""Many processes that all want one lock, with nothing to do while they hold it."""

import random
from time import monotonic, sleep

from ..contenders import LOCKS
from ..model import Bench, Chart, Column, Scenario
from ..show import count_spread, ratio_spread
from ..stats import ratios, spread
from ..workers import Crew, Seat, warm

SLUGS = [contender.slug for contender in LOCKS]


def hammer(seat: Seat, name: str, start: float, end: float) -> int:
    """Return how often this process got the lock between two instants all processes share."""
    lock = seat.contender.lock
    got = 0
    sleep(max(0.0, start - monotonic()))
    while True:
        handle = lock(name)
        handle.acquire()
        if monotonic() >= end:
            handle.release()
            return got
        got += 1
        handle.release()


def once(crew: Crew, name: str, seconds: float) -> list[int]:
    """Let all processes start at one instant and stop at another."""
    start = monotonic() + 0.1
    return [int(got) for got in crew.together(hammer, name, start, start + seconds)]


def measure(bench: Bench) -> None:
    """Let everyone run once in each round, in an order drawn anew."""
    seconds = bench.sizes.crowd_seconds
    shares: dict[str, list[list[int]]] = {slug: [] for slug in SLUGS}
    with bench.crews(SLUGS, bench.sizes.crowd) as crews:
        for slug in bench.fit(list(crews)):
            bench.attempt(slug, prepare, crews[slug])
        for turn in range(bench.sizes.crowd_rounds):
            for slug in random.sample(SLUGS, len(SLUGS)):
                if slug not in bench.fit(SLUGS):
                    continue
                name = f"bench:{slug}:{turn}"
                if share := bench.attempt(slug, once, crews[slug], name, seconds):
                    shares[slug].append(share)
    rates = {slug: [sum(share) / seconds for share in shares[slug]] for slug in SLUGS}
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = {
            "per_second": spread(rates[slug]),
            "ratio": ratios(rates[slug], rates["redis-py"]),
            "ratio_queue": ratios(rates[slug], rates["python-redis-lock"]),
            "fairness": spread([min(share) / max(share) for share in shares[slug]]),
            "shares": shares[slug],
        }


def prepare(crew: Crew) -> None:
    """Run for a moment untimed: scripts, connections and listeners are then in place."""
    for worker in crew.workers:
        worker.call(warm)
    once(crew, f"warm:crowd:{crew.slug}", 0.2)


SCENARIO = Scenario(
    name="contended",
    title="Contended: {crowd} processes on one name, empty section",
    how=(
        "All processes start and stop at the same instants. Fairness is the share of the least "
        "served process over that of the most served. Rounds of the contenders alternate; ratios "
        "are taken within each round. Median of the rounds (least to greatest)."
    ),
    measure=measure,
    columns=(
        Column("per_second", "acquisitions/s", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
        Column("ratio_queue", "ratio to python-redis-lock", ratio_spread),
        Column("fairness", "least/most served", ratio_spread),
    ),
    charts=(
        Chart(
            "{crowd} processes on one lock: throughput",
            {"per_second.median": ""},
            "acquisitions per second",
            "higher",
        ),
        Chart(
            "{crowd} processes on one lock: fairness",
            {"fairness.median": ""},
            "least served / most served",
            "higher",
        ),
    ),
)
