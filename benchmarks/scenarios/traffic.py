"""Commands, round trips and bytes that one uncontended pair costs."""

from ..contenders import LOCKS, OursRenewed
from ..model import Bench, Chart, Column, Scenario
from ..proxy import CountingProxy, Traffic
from ..server import commands, grown
from ..show import breakdown, number
from ..workers import Crew, Seat, warm

SLUGS = [*(contender.slug for contender in LOCKS), OursRenewed.slug]


def pairs(seat: Seat, prefix: str, count: int) -> None:
    """Acquire and release so many fresh names."""
    for serial in range(count):
        handle = seat.contender.lock(f"{prefix}:{serial}")
        handle.acquire()
        handle.release()


def count(bench: Bench, slug: str) -> None:
    """Count what passes a proxy, and what the server executes, in a number of pairs."""
    repeats = bench.sizes.traffic_pairs
    with CountingProxy(bench.port) as proxy:
        url = bench.url.replace(f":{bench.port}/", f":{proxy.port}/")
        with Crew(slug, url) as crew:
            crew.call(warm)
            proxy.traffic = Traffic()
            before = commands(bench.admin)
            crew.call(pairs, f"bench:{slug}", repeats)
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
    """Count for one contender after the other; nothing here depends on time."""
    for slug in SLUGS:
        bench.attempt(slug, count, bench, slug)


SCENARIO = Scenario(
    name="traffic",
    title="What one uncontended pair costs",
    how=(
        "Round trips and bytes are counted by a TCP proxy between client and server, commands by "
        "the server (`INFO commandstats`, so also those inside scripts)."
    ),
    measure=measure,
    columns=(
        Column("round_trips", "round trips", number),
        Column("commands", "commands", number),
        Column("sent", "bytes sent", number),
        Column("received", "bytes received", number),
        Column("by_command", "which", breakdown),
    ),
    charts=(
        Chart(
            "Cost of one pair",
            {"round_trips": "round trips", "commands": "commands on the server"},
            "per acquire + release",
            "lower",
        ),
    ),
)
