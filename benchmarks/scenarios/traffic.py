"""Commands, round trips and bytes that one uncontended pair costs."""

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import LOCKS, OursRenewed
from benchmarks.frame.figures import breakdown, number
from benchmarks.frame.server import commands, grown
from benchmarks.frame.table import Column
from benchmarks.scenarios.proxy import CountingProxy, Traffic

SLUGS = [*(contender.slug for contender in LOCKS), OursRenewed.slug]


def pairs(seat: Seat, prefix: str, count: int) -> None:
    for serial in range(count):
        handle = seat.contender.lock(f"{prefix}:{serial}")
        handle.acquire()
        handle.release()


def count(bench: Bench, slug: str) -> None:
    repeats = bench.sizes.traffic_pairs
    with CountingProxy(bench.port) as proxy:
        url = bench.url.replace(f":{bench.port}/", f":{proxy.port}/")
        with crew(slug, url) as worker:
            worker.call(warm)
            proxy.traffic = Traffic()
            before = commands(bench.admin)
            worker.call(pairs, f"bench:{slug}", repeats)
            after, traffic = commands(bench.admin), proxy.traffic
    executed = grown(before, after)
    bench.rows[slug] = {
        "round_trips": traffic.round_trips / repeats,
        "commands": sum(executed.values()) / repeats,
        "sent": traffic.sent / repeats,
        "received": traffic.received / repeats,
        "new_connections": traffic.connections,
        "by_command": {name: calls / repeats for name, calls in executed.items()},
    }


def measure(bench: Bench) -> None:
    for slug in SLUGS:
        bench.attempt(slug, count, bench, slug)


SCENARIO = Scenario(
    name="traffic",
    title="What one uncontended pair costs",
    how=(
        "Round trips and bytes are counted by a TCP proxy between client and server, commands by "
        "the server (`INFO commandstats`, which includes those inside scripts)."
    ),
    measure=measure,
    seconds=lambda sizes: len(SLUGS) * (1.5 + sizes.traffic_pairs / 1000),
    columns=(
        Column("round_trips", "round trips", number),
        Column("commands", "commands", number),
        Column("sent", "bytes sent", number),
        Column("received", "bytes received", number),
        Column("by_command", "which", breakdown),
    ),
    charts=(
        Chart(
            {"round_trips": "round trips", "commands": "commands on the server"},
            "per acquire + release; lower is better",
        ),
    ),
)
