"""How much CPU time of the server one uncontended pair takes."""

from redis import Redis

from benchmarks.bench import Bench, Chart, Scenario, warm
from benchmarks.contenders import LOCKS, Bare, OursRenewed
from benchmarks.frame.figures import count_spread, ratio_spread, ratios, spread
from benchmarks.frame.table import Column
from benchmarks.scenarios.traffic import pairs

SLUGS = [*(contender.slug for contender in LOCKS), OursRenewed.slug, Bare.slug]


def used(admin: Redis) -> float:
    """Return the CPU time of all threads of the server, in microseconds."""
    info = admin.info("cpu")
    return 1_000_000 * float(info["used_cpu_user"] + info["used_cpu_sys"])


def measure(bench: Bench) -> None:
    count = bench.sizes.processor_pairs
    with bench.crews(SLUGS) as crews:
        for slug, crew in crews.items():
            bench.attempt(slug, crew.call, warm)

        def once(slug: str, turn: int) -> float:
            before = used(bench.admin)
            crews[slug].call(pairs, f"bench:{slug}:{turn}", count)
            return (used(bench.admin) - before) / count

        costs = bench.rounds(bench.sizes.processor_rounds, SLUGS, once)
    for slug in bench.fit(SLUGS):
        bench.rows[slug] = {
            "microseconds": spread(costs[slug]),
            "ratio": ratios(costs[slug], costs["redis-py"]),
            "ratio_bare": ratios(costs[slug], costs[Bare.slug]),
            "rounds": costs[slug],
        }


SCENARIO = Scenario(
    name="processor",
    title="The server's CPU time for one uncontended pair",
    how=(
        "Growth of `used_cpu_user` and `used_cpu_sys` (`INFO cpu`) over {processor_pairs:,} pairs "
        "of one process, in {processor_rounds} rounds in which the contenders alternate in random "
        "order. It includes reading, running and answering the commands. The ratios are taken "
        "within each round."
    ),
    measure=measure,
    seconds=lambda sizes: 6 + sizes.processor_rounds * len(SLUGS) * sizes.processor_pairs / 2500,
    columns=(
        Column("microseconds", "µs a pair", count_spread),
        Column("ratio", "ratio to redis-py", ratio_spread),
        Column("ratio_bare", "ratio to bare SET and DEL", ratio_spread),
    ),
    charts=(Chart("microseconds.median", "microseconds; lower is better"),),
)
