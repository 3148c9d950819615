"""What the metrics for Prometheus cost: the same loops with their receivers on and off."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import Ours, OursAsync
from benchmarks.frame.figures import count_spread, middle_half, ratio_spread, ratios
from benchmarks.frame.table import Column
from benchmarks.scenarios.contended import once
from benchmarks.scenarios.uncontended import async_pairs, pairs

OFF, ON = "off", "on"
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
CROWD = 4
TITLES = {
    "pair": "uncontended pair",
    "pair-multiprocess": "uncontended pair, multiprocess mode",
    "async": "uncontended pair, asyncio",
    "crowd": f"{CROWD} processes on one name",
    "crowd-multiprocess": f"{CROWD} processes on one name, multiprocess mode",
}


def switch(seat: Seat, state: str) -> None:
    """Connect or disconnect the receivers in a worker process."""
    # Not above: what is imported before the directory is set counts for one process alone.
    from django_redis_lock.contrib.prometheus import counting

    for signal, receiver in counting.RECEIVERS:
        signal.disconnect(receiver)
    if state == ON:
        counting.connect()


def share(seat: Seat, directory: str) -> None:
    """Turn on the multiprocess mode, before anything is counted."""
    os.environ[MULTIPROCESS] = directory


@contextmanager
def workers(bench: Bench, what: str, slug: str) -> Iterator[Any]:
    """Start the processes of one row."""
    with tempfile.TemporaryDirectory() as directory, crew(slug, bench.url, CROWD) as started:
        if what.endswith("-multiprocess"):
            started.together(share, directory)
        if slug != OursAsync.slug:  # whose connection is that of its event loop
            started.together(warm)
        yield started


def alternate(bench: Bench, what: str, started: Any, rate: Callable[[str, int], float]) -> None:
    """Measure with the receivers off and on in each round, and make the row of it."""

    def measured(state: str, turn: int) -> float:
        started.together(switch, state)
        return rate(state, turn)

    rates = bench.rounds(bench.sizes.overhead_rounds, (OFF, ON), measured)
    more = [1e6 / on - 1e6 / off for on, off in zip(rates[ON], rates[OFF], strict=True)]
    bench.rows[what] = {
        "title": TITLES[what],
        "off": middle_half(rates[OFF]),
        "ratio": ratios(rates[ON], rates[OFF], middle_half),
        "microseconds": middle_half(more),
    }


def measure(bench: Bench) -> None:
    sizes = bench.sizes
    for what, slug, loop in (
        ("pair", Ours.slug, pairs),
        ("pair-multiprocess", Ours.slug, pairs),
        ("async", OursAsync.slug, async_pairs),
    ):
        with workers(bench, what, slug) as started:

            def alone(state: str, turn: int, loop: Any = loop, started: Any = started) -> float:
                name = f"metrics:{state}:{turn}"
                return float(started.turn(turn).call(loop, name, sizes.overhead_seconds))

            alternate(bench, what, started, alone)
    for what in ("crowd", "crowd-multiprocess"):
        with workers(bench, what, Ours.slug) as started:

            def together(state: str, turn: int, started: Any = started) -> float:
                name = f"metrics:{state}:{turn}"
                return sum(once(started, name, sizes.overhead_seconds)) / sizes.overhead_seconds

            alternate(bench, what, started, together)


SCENARIO = Scenario(
    name="metrics",
    title="Metrics for Prometheus: with and without",
    how=(
        "The same loop with the receivers connected and not, in turn, in the same processes; the "
        "ratio is taken within each round. Multiprocess mode keeps the metrics in files that all "
        "processes share. {overhead_rounds} rounds of {overhead_seconds:g} s: median (middle half)."
    ),
    measure=measure,
    seconds=lambda sizes: 10 + 10 * sizes.overhead_rounds * (sizes.overhead_seconds + 0.05),
    columns=(
        Column("off", "pairs/s without", count_spread),
        Column("ratio", "ratio with", ratio_spread),
        Column("microseconds", "µs more for a pair", count_spread),
    ),
    charts=(Chart("ratio.median", "pairs per second with metrics, over those without"),),
)
