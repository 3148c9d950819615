"""What the setting CONTENTION costs: pairs with it and without, in alternation."""

import json
from time import perf_counter, process_time
from typing import Any

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import OursOnLayouts
from benchmarks.frame.figures import count_spread, middle_half, number, ratio_spread, ratios
from benchmarks.frame.table import Column
from benchmarks.scenarios.contended import once
from benchmarks.site import BACKEND

OFF, ON = "off", "on"
TITLES = {OFF: "CONTENTION off", ON: "CONTENTION on"}
BATCH = 20
"""Pairs between two looks at the clock."""


def site(url: str) -> dict[str, Any]:
    """Return Django's settings: an alias that counts, and one that does not."""
    groups = {"bench:*": "bench", "crowd:*": "crowd"}
    return {
        "LOCKS": {
            alias: {
                "BACKEND": BACKEND,
                "LOCATION": url,
                "KEY_PREFIX": alias,
                "OPERATORS": {"GROUPS": groups, "CONTENTION": alias == ON},
            }
            for alias in TITLES
        }
    }


def pairs(seat: Seat, prefix: str, seconds: float) -> tuple[float, float]:
    """Return the pairs per second of a loop, and the CPU time of a pair in microseconds."""
    lock = seat.contender.lock
    done = 0
    began, used = perf_counter(), process_time()
    while (elapsed := perf_counter() - began) < seconds:
        for serial in range(done, done + BATCH):
            handle = lock(f"{prefix}:{serial}")
            handle.acquire()
            handle.release()
        done += BATCH
    return done / elapsed, 1_000_000 * (process_time() - used) / done


def measure(bench: Bench) -> None:
    seconds, rounds = bench.sizes.overhead_seconds, bench.sizes.overhead_rounds
    with crew(OursOnLayouts.slug, json.dumps(site(bench.url)), bench.sizes.crowd) as workers:
        for alias in TITLES:
            for worker in workers.workers:
                worker.call(warm, f"{alias}|warm")
            once(workers, f"{alias}|crowd:warm", 0.2)
        alone = bench.rounds(
            rounds,
            list(TITLES),
            lambda alias, turn: workers.turn(turn).call(pairs, f"{alias}|bench:{turn}", seconds),
        )
        crowd = bench.rounds(
            rounds,
            list(TITLES),
            lambda alias, turn: sum(once(workers, f"{alias}|crowd:{turn}", seconds)) / seconds,
        )
    rates = {alias: [rate for rate, _ in alone[alias]] for alias in TITLES}
    used = {alias: [cpu for _, cpu in alone[alias]] for alias in TITLES}
    for alias in bench.fit(list(TITLES)):
        more = [one - base for one, base in zip(used[alias], used[OFF], strict=True)]
        bench.rows[alias] = {
            "title": TITLES[alias],
            "per_second": middle_half(rates[alias]),
            "ratio": ratios(rates[alias], rates[OFF], middle_half),
            "cpu": middle_half(used[alias]),
            "cpu_more": middle_half(more),
            "crowd": middle_half(crowd[alias]),
            "crowd_ratio": ratios(crowd[alias], crowd[OFF], middle_half),
            "bytes": _largest(bench, alias),
        }


def _largest(bench: Bench, alias: str) -> int:
    """Return the bytes of the largest group on the server; the counts of exited workers are in."""
    keys = bench.admin.keys(f"{alias}-contention:*")
    return max((bench.admin.memory_usage(key) or 0 for key in keys), default=0)


SCENARIO = Scenario(
    name="contention",
    title="The setting CONTENTION: a pair with it and without",
    how=(
        "One of {crowd} processes with a new name each time, then all of them on one name: with "
        "the setting and without in alternation, {overhead_rounds} rounds of "
        "{overhead_seconds:g} s each. The CPU time is that of the client's process with all its "
        "threads. Ratios and differences are taken within each round: median (middle half)."
    ),
    measure=measure,
    seconds=lambda sizes: 10 + 4 * sizes.overhead_rounds * (sizes.overhead_seconds + 0.05),
    columns=(
        Column("per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to off", ratio_spread),
        Column("cpu", "µs of CPU for a pair", count_spread),
        Column("cpu_more", "more than off", count_spread),
        Column("crowd", "contended/s", count_spread),
        Column("crowd_ratio", "ratio to off", ratio_spread),
        Column("bytes", "bytes of the largest group", number),
    ),
    charts=(Chart("cpu.median", "microseconds of CPU for a pair; lower is better"),),
)
