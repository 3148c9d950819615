"""What a lock costs on each layout of servers, and with each way of waiting."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Cluster, Sentinel

from ..contenders import LEASE, OursOnLayouts
from ..model import Bench, Chart, Column, Scenario
from ..show import count_spread, ratio, ratio_spread
from ..stats import ratios, spread
from ..workers import Crew, warm
from .handoff import milliseconds, once
from .uncontended import pairs

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

BACKENDS = "django_redis_lock.backends"
REDIS = f"{BACKENDS}.redis.RedisLockBackend"
REDLOCK = f"{BACKENDS}.redlock.RedlockLockBackend"
GETSET = f"{BACKENDS}.getset.GetSetLockBackend"
HELD = (0.005, 0.255)
"""Seconds the waiter waits, drawn evenly over one interval of those that look from time to time."""
WARMED = 6
"""Hand-overs that are not timed; of a cluster they open the listening connections to its nodes."""


@contextmanager
def servers(url: str) -> Iterator[dict[str, Any]]:
    """Start the servers, and yield the settings with an alias of LOCKS for each layout."""
    with ExitStack() as stack:
        sentinel = stack.enter_context(Sentinel(down_after=30))  # nobody is to be taken for dead
        cluster = stack.enter_context(Cluster(node_timeout=30))
        five = [stack.enter_context(EmbeddedServer()) for _ in range(5)]

        def alone(db: int, **entry: Any) -> dict[str, Any]:
            return {"BACKEND": REDIS, "LOCATION": url.replace("/0?", f"/{db}?"), **entry}

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
    """Let each layout have its turn in each round, in an order drawn anew."""
    rates: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    waits: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    with (
        servers(bench.url) as settings,
        Crew(OursOnLayouts.slug, json.dumps(settings), 2) as crew,
    ):
        for layout in LAYOUTS:
            bench.attempt(layout, prepare, crew, layout)
        for turn in range(bench.sizes.layout_rounds):
            for layout in random.sample(list(LAYOUTS), len(LAYOUTS)):
                if layout in bench.fit(list(LAYOUTS)):
                    done = bench.attempt(layout, one_turn, bench, crew, layout, turn)
                    if done is not None:
                        rates[layout].append(done[0])
                        waits[layout].extend(done[1])
    fit = bench.fit(list(LAYOUTS))
    failed, bench.rows = bench.rows, {}
    for layout, title in LAYOUTS.items():
        row = failed[layout] if layout not in fit else figures(layout, rates, waits)
        bench.rows[layout] = row | {"title": title}
    bench.rows[BASE]["completed"] = len(fit)


def prepare(crew: Crew, layout: str) -> None:
    """Open connections, load scripts and start listeners."""
    for worker in crew.workers:
        worker.call(warm, f"{layout}|warm")
    for serial in range(WARMED):
        once(crew, f"{layout}|warm:{serial}")


def one_turn(bench: Bench, crew: Crew, layout: str, turn: int) -> tuple[float, list[float]]:
    """Return pairs per second, and the milliseconds of each hand-over."""
    name = f"{layout}|bench:{turn}"
    rate = crew.call(pairs, name, bench.sizes.pair_seconds)
    each = range(bench.sizes.layout_each)
    return rate, [once(crew, f"{name}:handed:{serial}", HELD) for serial in each]


def figures(
    layout: str, rates: dict[str, list[float]], waits: dict[str, list[float]]
) -> dict[str, Any]:
    """Return the row of a layout."""
    middle, base = spread(waits[layout]), waits[BASE]
    return {
        "pairs_per_second": spread(rates[layout]),
        "ratio": ratios(rates[layout], rates[BASE]),
        "milliseconds": middle,
        "handoff_ratio": middle["median"] / spread(base)["median"] if base else None,
        "rounds": rates[layout],
        "each": waits[layout],
    }


SCENARIO = Scenario(
    name="layouts",
    title="Layouts of servers, and ways of waiting",
    how=(
        "The same lock, with a fixed lease, on each layout; all servers on this machine. "
        "Uncontended pairs by one process, and hand-over to a waiter in another one, who is known "
        "to wait and then does so for another 5 to 255 ms. {layout_rounds} rounds in an order "
        "drawn anew, with {layout_each} hand-overs in each. Both ratios are to one server with "
        '`WAIT` `"queue"`; pairs within each round, hand-overs by their medians.'
    ),
    measure=measure,
    columns=(
        Column("pairs_per_second", "pairs/s", count_spread),
        Column("ratio", "ratio to one server", ratio_spread),
        Column("milliseconds", "hand-off, median ms (least to greatest)", milliseconds),
        Column("handoff_ratio", "ratio to one server", ratio),
    ),
    charts=(
        Chart(
            "Layouts: uncontended acquire + release",
            {"pairs_per_second.median": ""},
            "pairs per second",
            "higher",
        ),
        Chart(
            "Layouts: hand-off to another process",
            {"milliseconds.median": ""},
            "milliseconds, median",
            "lower",
            log=True,
        ),
    ),
)
