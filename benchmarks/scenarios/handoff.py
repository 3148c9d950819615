"""How long a waiter in another process takes to get a lock that is released."""

import random
from threading import Thread
from time import monotonic_ns, sleep

from ..contenders import LOCKS, Wakeup
from ..model import Bench, Chart, Column, Scenario
from ..server import wait_until
from ..show import number, ratio
from ..stats import Spread, percentile, spread
from ..workers import Crew, Seat

SLUGS = [Wakeup.slug, *(contender.slug for contender in LOCKS)]
HELD = (0.005, 0.105)
"""Seconds the waiter waits, drawn evenly, so that no polling meets the release at a fixed phase."""


def hold(seat: Seat, name: str) -> None:
    """Take the lock."""
    handle = seat.contender.lock(name)
    if seat.contender.slug != Wakeup.slug:
        handle.acquire()
    seat.handles = [handle]


def release(seat: Seat, seconds: float) -> int:
    """Release after some time, and tell when that began."""
    sleep(seconds)
    began = monotonic_ns()
    seat.handles[0].release()
    return began


def wait(seat: Seat, name: str) -> None:
    """Begin to wait in a thread, and return once it truly waits."""
    handle = seat.contender.lock(name)

    def body() -> None:
        handle.acquire()
        seat.notes = [monotonic_ns()]
        handle.release()

    thread = Thread(target=body)
    seat.notes = []
    seat.threads = [thread]
    thread.start()
    wait_until(lambda: seat.contender.in_line(name, thread, 1), "the waiter is in line")


def arrived(seat: Seat) -> int:
    """Tell when the waiter got the lock."""
    seat.threads[0].join()
    return int(seat.notes[0])


def once(crew: Crew, name: str, held: tuple[float, float] = HELD) -> float:
    """Measure one hand-off in milliseconds.

    The answer of the waiter is read before that of the holder, so that this process sleeps until
    both are done. CLOCK_MONOTONIC is one clock for all processes of a Linux system.
    """
    holder, waiter = crew.workers
    holder.call(hold, name)
    waiter.call(wait, name)
    holder.start(release, random.uniform(*held))
    try:
        end = int(waiter.call(arrived))
    finally:
        began = int(holder.result())  # or the next call would be given this answer
    return (end - began) / 1e6


def measure(bench: Bench) -> None:
    """Let everyone hand over a few times in each round, in an order drawn anew."""
    waits: dict[str, list[float]] = {slug: [] for slug in SLUGS}
    with bench.crews(SLUGS, 2) as crews:
        for slug in bench.fit(list(crews)):
            bench.attempt(slug, prepare, crews[slug])
        for turn in range(bench.sizes.handoff_rounds):
            for slug in random.sample(SLUGS, len(SLUGS)):
                for serial in range(bench.sizes.handoff_each):
                    if slug not in bench.fit(SLUGS):
                        break
                    name = f"bench:{slug}:{turn}:{serial}"
                    took = bench.attempt(slug, once, crews[slug], name)
                    if took is not None:
                        waits[slug].append(took)
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = summary(waits[slug], waits[Wakeup.slug])


def prepare(crew: Crew) -> None:
    """Hand over a few times untimed: scripts, connections and listeners are then in place."""
    for serial in range(3):
        once(crew, f"warm:{crew.slug}:{serial}")


def summary(waits: list[float], floor: list[float]) -> dict[str, Spread | float | list[float]]:
    """Return median, 99th percentile and their ratio to the bare wake-up."""
    middle = spread(waits)
    row: dict[str, Spread | float | list[float]] = {
        "milliseconds": middle,
        "p99": percentile(waits, 99),
        "each": waits,
    }
    if floor:
        row["ratio"] = middle["median"] / spread(floor)["median"]
        row["ratio_p99"] = percentile(waits, 99) / percentile(floor, 99)
    return row


def milliseconds(value: Spread) -> str:
    """Print the median and the least."""
    return f"{value['median']:.3f} ({value['min']:.3f} to {value['max']:.3f})"


SCENARIO = Scenario(
    name="handoff",
    title="Hand-off to a waiter in another process",
    how=(
        "From the start of `release()` in the holder to the return of `acquire()` in the waiter, "
        "by CLOCK_MONOTONIC, which all processes share. The waiter is known to wait, and then does "
        "so for another 5 to 105 ms, drawn evenly. The ratio is to a bare LPUSH that wakes a BLPOP "
        "in the same loop."
    ),
    measure=measure,
    columns=(
        Column("milliseconds", "median ms (least to greatest)", milliseconds),
        Column("p99", "p99 ms", number),
        Column("ratio", "ratio to bare wake-up", ratio),
        Column("ratio_p99", "p99 ratio", ratio),
    ),
    charts=(
        Chart(
            "Hand-off to another process",
            {"milliseconds.median": "median", "p99": "p99"},
            "milliseconds",
            "lower",
            log=True,
        ),
    ),
)
