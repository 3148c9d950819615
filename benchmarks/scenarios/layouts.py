"""What a lock costs on each layout of servers, and with each waiting scheme."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.bench import Bench, Chart, Scenario, crew, warm
from benchmarks.contenders import LEASE, OursOnLayouts
from benchmarks.frame.figures import count_spread, ratio, ratio_spread, ratios, spread
from benchmarks.frame.table import Column
from benchmarks.frame.workers import Crew
from benchmarks.scenarios.handoff import milliseconds, once
from benchmarks.scenarios.uncontended import pairs
from benchmarks.site import BACKEND
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Cluster, Sentinel

BASE = "queue"
LAYOUTS = {
    BASE: "one server",
    "blpop": 'one server, WAIT "blpop"',
    "poll": 'one server, WAIT "poll"',
    "sentinel": "Sentinel",
    "replicas": "Sentinel, REPLICAS 1",
    "cluster": "Cluster, 3 masters",
    "redlock3": "redlock, 3 servers",
    "redlock5": "redlock, 5 servers",
    "getset": "getset, one server",
}
"""The title of each row by its alias in LOCKS."""

REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
HELD = (0.005, 0.255)
"""The waiter waits this many seconds, drawn evenly over one interval of the backends that poll."""
WARMED = 6
"""Untimed hand-offs; in a cluster they open the listening connections to its nodes."""


@contextmanager
def servers(url: str) -> Iterator[dict[str, Any]]:
    """Start the servers; yield settings with an alias of LOCKS for each layout."""
    with ExitStack() as stack:
        sentinel = stack.enter_context(Sentinel(down_after=30))  # no failover in the meantime
        cluster = stack.enter_context(Cluster(node_timeout=30))
        five = [stack.enter_context(EmbeddedServer()) for _ in range(5)]

        def alone(db: int, **entry: Any) -> dict[str, Any]:
            return {"BACKEND": BACKEND, "LOCATION": url.replace("/0?", f"/{db}?"), **entry}

        watched = sentinel.locks("sentinel")
        entries = {
            BASE: alone(0),
            "blpop": alone(1, OPTIONS={"WAIT": "blpop"}),
            "poll": alone(2, OPTIONS={"WAIT": "poll"}),
            "getset": alone(3, BACKEND=GETSET),
            **watched["LOCKS"],
            **sentinel.locks("replicas", KEY_PREFIX="replicas", OPTIONS={"REPLICAS": 1})["LOCKS"],
            **cluster.locks("cluster")["LOCKS"],
            "redlock3": {"BACKEND": REDLOCK, "LOCATION": [server.url() for server in five[:3]]},
            "redlock5": {"BACKEND": REDLOCK, "LOCATION": [server.url(1) for server in five]},
        }
        for entry in entries.values():
            entry["TIMEOUT"] = LEASE
        yield {**watched, "LOCKS": entries}


def measure(bench: Bench) -> None:
    with (
        servers(bench.url) as settings,
        crew(OursOnLayouts.slug, json.dumps(settings), 2) as workers,
    ):
        for layout in LAYOUTS:
            bench.attempt(layout, prepare, workers, layout)
        done = bench.rounds(
            bench.sizes.layout_rounds,
            list(LAYOUTS),
            lambda layout, turn: one_turn(bench, workers, f"{layout}|bench:{turn}"),
        )
    fit = bench.fit(list(LAYOUTS))
    failed, bench.rows = bench.rows, {}
    for layout, title in LAYOUTS.items():
        row = figures(done[layout], done[BASE]) if layout in fit else failed[layout]
        bench.rows[layout] = row | {"title": title}
    bench.rows[BASE]["completed"] = len(fit)


def prepare(crew: Crew, layout: str) -> None:
    """Open connections, load scripts and start listeners."""
    for worker in crew.workers:
        worker.call(warm, f"{layout}|warm")
    for serial in range(WARMED):
        once(crew, f"{layout}|warm:{serial}")


def one_turn(bench: Bench, crew: Crew, name: str) -> tuple[float, list[float]]:
    rate = crew.call(pairs, name, bench.sizes.pair_seconds)
    each = range(bench.sizes.layout_each)
    return rate, [once(crew, f"{name}:handed:{serial}", HELD) for serial in each]


def figures(
    done: list[tuple[float, list[float]]], base: list[tuple[float, list[float]]]
) -> dict[str, Any]:
    rates, base_rates = ([rate for rate, _ in each] for each in (done, base))
    waits, base_waits = ([wait for _, waits in each for wait in waits] for each in (done, base))
    middle = spread(waits)
    return {
        "pairs_per_second": spread(rates),
        "ratio": ratios(rates, base_rates),
        "milliseconds": middle,
        "handoff_ratio": middle["median"] / spread(base_waits)["median"] if base else None,
        "rounds": rates,
        "each": waits,
    }


SCENARIO = Scenario(
    name="layouts",
    title="Layouts of servers, and waiting schemes",
    how=(
        "The same lock, with a fixed lease, on each layout; all servers on this machine. "
        "Uncontended pairs by one process, and hand-off to a waiter in another one, which is known "
        "to wait and then waits for another 5 to 255 ms. {layout_rounds} rounds in random order, "
        "with {layout_each} hand-offs in each. Both ratios are to one server with `WAIT` "
        '`"queue"`: pairs within each round, hand-offs by their medians.'
    ),
    measure=measure,
    seconds=lambda sizes: (
        20 + sizes.layout_rounds * len(LAYOUTS) * (sizes.pair_seconds + sizes.layout_each / 6)
    ),
    columns=(
        Column("pairs_per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to one server", ratio_spread),
        Column("milliseconds", "hand-off, median ms (range)", milliseconds),
        Column("handoff_ratio", "ratio to one server", ratio),
    ),
    charts=(
        Chart(
            "pairs_per_second.median",
            "pairs per second; higher is better",
            "Layouts: uncontended acquire + release",
        ),
        Chart(
            "milliseconds.median",
            "milliseconds, median; lower is better",
            "Layouts: hand-off to another process",
            log=True,
        ),
    ),
)
