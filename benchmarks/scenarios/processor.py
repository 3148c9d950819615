"""How much processor time of the server one uncontended pair takes."""

import random

from redis import Redis

from ..contenders import LOCKS, Bare, OursRenewed
from ..model import Bench, Chart, Column, Scenario
from ..show import count_spread, ratio_spread
from ..stats import ratios, spread
from ..workers import Crew, warm
from .traffic import pairs

SLUGS = [*(contender.slug for contender in LOCKS), OursRenewed.slug, Bare.slug]


def used(admin: Redis) -> float:
    """Return the microseconds of processor time that the server has used, in all its threads."""
    info = admin.info("cpu")
    return 1_000_000 * float(info["used_cpu_user"] + info["used_cpu_sys"])


def cost(bench: Bench, crew: Crew, prefix: str) -> float:
    """Return the server's microseconds for each pair of a batch."""
    count = bench.sizes.processor_pairs
    before = used(bench.admin)
    crew.call(pairs, prefix, count)
    return (used(bench.admin) - before) / count


def measure(bench: Bench) -> None:
    """Let everyone run once in each round, in an order drawn anew."""
    costs: dict[str, list[float]] = {slug: [] for slug in SLUGS}
    with bench.crews(SLUGS) as crews:
        for slug, crew in crews.items():
            bench.attempt(slug, crew.call, warm)
        for number in range(bench.sizes.processor_rounds):
            for slug in random.sample(SLUGS, len(SLUGS)):
                if slug in bench.fit(SLUGS):
                    prefix = f"bench:{slug}:{number}"
                    found = bench.attempt(slug, cost, bench, crews[slug], prefix)
                    if found is not None:
                        costs[slug].append(found)
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = {
            "microseconds": spread(costs[slug]),
            "ratio": ratios(costs[slug], costs["redis-py"]),
            "ratio_bare": ratios(costs[slug], costs[Bare.slug]),
            "rounds": costs[slug],
        }


SCENARIO = Scenario(
    name="processor",
    title="The server's processor time for one uncontended pair",
    how=(
        "Growth of `used_cpu_user` and `used_cpu_sys` (`INFO cpu`) over {processor_pairs:,} pairs "
        "of one process, in {processor_rounds} rounds in which the contenders alternate in an "
        "order drawn anew. Reading, running and answering the commands are all in it. The ratios "
        "are taken within each round."
    ),
    measure=measure,
    columns=(
        Column("microseconds", "µs a pair", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
        Column("ratio_bare", "ratio to bare SET and DEL", ratio_spread),
    ),
    charts=(
        Chart(
            "Server's processor time for a pair",
            {"microseconds.median": ""},
            "microseconds",
            "lower",
        ),
    ),
)
