"""List the locks that are held, in a database full of other keys."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from redis import Redis

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import Ours
from benchmarks.frame.figures import Spread, ratio_spread, spread
from benchmarks.frame.table import Column
from benchmarks.scenarios.memory import hold_many

FILL = """
for number = ARGV[1], ARGV[2] do redis.call('SET', 'page:' .. number, 'x') end
"""


def list_holders(seat: Seat, count: int) -> float:
    """Return the milliseconds that a list of all holders takes."""
    began = perf_counter()
    holders = list(seat.contender.backend.holders())
    took = (perf_counter() - began) * 1000
    assert len(holders) == count, len(holders)
    return took


def scan(seat: Seat, count: int, step: int | None = 1000) -> float:
    """Return the milliseconds of a SCAN for the keys, which finds only their names."""
    client: Redis = seat.contender.client
    began = perf_counter()
    found = list(client.scan_iter(match="lock:*", count=step))
    took = (perf_counter() - began) * 1000
    assert len(set(found)) == count, len(found)
    return took


def scan_by_default(seat: Seat, count: int) -> float:
    """Do the same without COUNT: the server then checks ten keys in each round trip."""
    return scan(seat, count, None)


def scan_and_read(seat: Seat, count: int) -> float:
    """Also read each lock, in one pipeline, as a list of holders requires."""
    client: Redis = seat.contender.client
    began = perf_counter()
    pipeline = client.pipeline(transaction=False)
    for key in client.scan_iter(match="lock:*", count=1000):
        pipeline.get(key)
        pipeline.pttl(key)
    found = pipeline.execute()
    took = (perf_counter() - began) * 1000
    assert len(found) >= 2 * count, len(found)
    return took


WAYS: dict[str, tuple[str, Callable[[Seat, int], float]]] = {
    Ours.slug: (Ours.title, list_holders),
    "scan": ("SCAN MATCH, COUNT 1000", scan),
    "scan-and-read": ("the same, then GET and PTTL", scan_and_read),
    "scan-by-default": ("SCAN MATCH, no COUNT", scan_by_default),
}
ONCE = "scan-by-default"


def measure(bench: Bench) -> None:
    keys, step = bench.sizes.keys, 10_000
    for first in range(1, keys, step):
        bench.admin.eval(FILL, 0, first, min(first + step - 1, keys))
    bench.attempt(Ours.slug, compare, bench)


def compare(bench: Bench) -> None:
    """Hold the locks and list them in each way, the first time untimed."""
    held = bench.sizes.held_listed
    took: dict[str, list[float]] = {slug: [] for slug in WAYS}
    with crew(Ours.slug, bench.url) as worker:
        worker.call(warm)
        worker.call(hold_many, held)
        for turn in range(1 + bench.sizes.list_rounds):
            for slug, (_, function) in WAYS.items():
                if turn == 1 or slug != ONCE:
                    milliseconds = worker.call(function, held)
                    if turn:
                        took[slug].append(milliseconds)
    for slug, (title, _) in WAYS.items():
        bench.rows[slug] = {
            "title": title,
            "milliseconds": spread(took[slug]),
            "speedup": spread([median(took[ONCE]) / value for value in took[slug]]),
            "speedup_tuned": spread([median(took["scan"]) / value for value in took[slug]]),
            "rounds": took[slug],
        }


def shown(value: Spread) -> str:
    return f"{value['median']:.1f} ({value['min']:.1f} to {value['max']:.1f})"


SCENARIO = Scenario(
    name="listing",
    title="Listing {held_listed:,} held locks among {keys:,} keys",
    how=(
        '`list(locks["default"].holders())`, which gives full records, and SCAN MATCH through '
        "redis-py, which gives only names; from one process, in turn. SCAN runs without COUNT, as "
        "in redis-py's `scan_iter` and django-redis's `iter_keys` by default, only once because "
        "it takes long; and with a COUNT of 1000."
    ),
    measure=measure,
    seconds=lambda sizes: 6 + sizes.keys / 120_000 + sizes.list_rounds * sizes.keys / 2_000_000,
    columns=(
        Column("milliseconds", "ms (range)", shown),
        Column("speedup", "times faster than SCAN MATCH", ratio_spread),
        Column("speedup_tuned", "than SCAN MATCH, COUNT 1000", ratio_spread),
    ),
    charts=(Chart("milliseconds.median", "milliseconds; lower is better", log=True),),
)
