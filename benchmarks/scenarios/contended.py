"""Many processes that all want one lock, with nothing to do while they hold it."""

from time import monotonic, sleep

from benchmarks.bench import Bench, Chart, Scenario, Seat, warm
from benchmarks.contenders import LOCKS
from benchmarks.frame.figures import count_spread, ratio_spread, ratios, spread
from benchmarks.frame.table import Column
from benchmarks.frame.workers import Crew

SLUGS = [contender.slug for contender in LOCKS]


def hammer(seat: Seat, name: str, start: float, end: float) -> int:
    """Return how often this process got the lock between two instants that all share."""
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
    """Let all processes start and stop at the same instants."""
    start = monotonic() + 0.1
    return [int(got) for got in crew.together(hammer, name, start, start + seconds)]


def measure(bench: Bench) -> None:
    seconds = bench.sizes.crowd_seconds
    with bench.crews(SLUGS, bench.sizes.crowd) as crews:
        for slug, crew in crews.items():
            bench.attempt(slug, prepare, crew, slug)
        shares = bench.rounds(
            bench.sizes.crowd_rounds,
            SLUGS,
            lambda slug, turn: once(crews[slug], f"bench:{slug}:{turn}", seconds),
        )
    rates = {slug: [sum(share) / seconds for share in shares[slug]] for slug in SLUGS}
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = {
            "per_second": spread(rates[slug]),
            "ratio": ratios(rates[slug], rates["redis-py"]),
            "ratio_queue": ratios(rates[slug], rates["python-redis-lock"]),
            "fairness": spread([min(share) / max(share) for share in shares[slug]]),
            "shares": shares[slug],
        }


def prepare(crew: Crew, slug: str) -> None:
    """Run for a moment untimed, which loads scripts and opens connections and listeners."""
    for worker in crew.workers:
        worker.call(warm)
    once(crew, f"warm:crowd:{slug}", 0.2)


SCENARIO = Scenario(
    name="contended",
    title="Contended: {crowd} processes on one name, empty section",
    how=(
        "All processes start and stop at the same instants. Fairness is the share of the least "
        "served process divided by that of the most served. Rounds of the contenders alternate; "
        "ratios are taken within each round. Median of the rounds (range)."
    ),
    measure=measure,
    seconds=lambda sizes: 15 + sizes.crowd_rounds * len(SLUGS) * (sizes.crowd_seconds + 0.2),
    columns=(
        Column("per_second", "acquisitions/s", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
        Column("ratio_queue", "ratio to python-redis-lock", ratio_spread),
        Column("fairness", "least/most served", ratio_spread),
    ),
    charts=(
        Chart(
            "per_second.median",
            "acquisitions per second; higher is better",
            "{crowd} processes on one lock: throughput",
        ),
        Chart(
            "fairness.median",
            "least served / most served; higher is better",
            "{crowd} processes on one lock: fairness",
        ),
    ),
)
