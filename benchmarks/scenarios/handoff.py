"""How long a waiter in another process takes to get a lock that is released."""

import random
from threading import Thread
from time import monotonic_ns, sleep

from benchmarks.bench import Bench, Chart, Scenario, Seat
from benchmarks.contenders import LOCKS, Wakeup
from benchmarks.frame.figures import Spread, number, percentile, ratio, spread
from benchmarks.frame.server import wait_until
from benchmarks.frame.table import Column, Row
from benchmarks.frame.workers import Crew

SLUGS = [Wakeup.slug, *(contender.slug for contender in LOCKS)]
HELD = (0.005, 0.105)
"""The waiter waits this many seconds, drawn evenly, so that polls meet the release at any phase."""


def hold(seat: Seat, name: str) -> None:
    handle = seat.contender.lock(name)
    if seat.contender.slug != Wakeup.slug:
        handle.acquire()
    seat.handles = [handle]


def release(seat: Seat, seconds: float) -> int:
    """Release after some time; return when the release began."""
    sleep(seconds)
    began = monotonic_ns()
    seat.handles[0].release()
    return began


def wait(seat: Seat, name: str) -> None:
    """Begin to wait in a thread; return once it really waits."""
    handle = seat.contender.lock(name)

    def body() -> None:
        handle.acquire()
        seat.notes = [monotonic_ns()]
        handle.release()

    thread = Thread(target=body)
    seat.notes = []
    seat.threads = [thread]
    thread.start()
    wait_until(lambda: seat.contender.waits(name, thread, 1), "the waiter waits")


def arrived(seat: Seat) -> int:
    seat.threads[0].join()
    return int(seat.notes[0])


def once(crew: Crew, name: str, held: tuple[float, float] = HELD) -> float:
    """Measure one hand-off in milliseconds.

    The waiter's answer is read before the holder's, so that this process sleeps until both are
    done. CLOCK_MONOTONIC is the same for all processes of a Linux system.
    """
    holder, waiter = crew.workers
    holder.call(hold, name)
    waiter.call(wait, name)
    holder.start(release, random.uniform(*held))
    try:
        end = int(waiter.call(arrived))
    finally:
        began = int(holder.result())  # otherwise the next call would get this answer
    return (end - began) / 1e6


def several(crew: Crew, prefix: str, count: int) -> list[float]:
    return [once(crew, f"{prefix}:{serial}") for serial in range(count)]


def measure(bench: Bench) -> None:
    sizes = bench.sizes
    with bench.crews(SLUGS, 2) as crews:
        for slug, crew in crews.items():  # untimed: scripts, connections and listeners
            bench.attempt(slug, several, crew, f"warm:{slug}", 3)
        found = bench.rounds(
            sizes.handoff_rounds,
            SLUGS,
            lambda slug, turn: several(crews[slug], f"bench:{slug}:{turn}", sizes.handoff_each),
        )
    waits = {slug: [wait for each in rounds for wait in each] for slug, rounds in found.items()}
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = summary(waits[slug], waits[Wakeup.slug])


def summary(waits: list[float], floor: list[float]) -> Row:
    middle = spread(waits)
    row: Row = {"milliseconds": middle, "p99": percentile(waits, 99), "each": waits}
    if floor:
        row["ratio"] = middle["median"] / spread(floor)["median"]
        row["ratio_p99"] = percentile(waits, 99) / percentile(floor, 99)
    return row


def milliseconds(value: Spread) -> str:
    return f"{value['median']:.3f} ({value['min']:.3f} to {value['max']:.3f})"


SCENARIO = Scenario(
    name="handoff",
    title="Hand-off to a waiter in another process",
    how=(
        "From the start of `release()` in the holder to the return of `acquire()` in the waiter, "
        "by CLOCK_MONOTONIC, which all processes share. The waiter is known to wait, and then "
        "waits for another 5 to 105 ms, drawn evenly. The ratio is to a bare LPUSH that wakes a "
        "BLPOP in the same loop."
    ),
    measure=measure,
    seconds=lambda sizes: 8 + sizes.handoff_rounds * len(SLUGS) * sizes.handoff_each * 0.08,
    columns=(
        Column("milliseconds", "median ms (range)", milliseconds),
        Column("p99", "p99 ms", number),
        Column("ratio", "ratio to bare wake-up", ratio),
        Column("ratio_p99", "p99 ratio", ratio),
    ),
    charts=(
        Chart(
            {"milliseconds.median": "median", "p99": "p99"},
            "milliseconds; lower is better",
            log=True,
        ),
    ),
)
