"""How much memory of the server one held lock takes."""

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import LOCKS, Contender
from benchmarks.frame.figures import number
from benchmarks.frame.server import settled_memory
from benchmarks.frame.table import Column

SLUGS = [contender.slug for contender in LOCKS]
LONG = 600


def hold_many(seat: Seat, count: int) -> str:
    """Hold `count` locks; return the key of one in the middle."""
    contender: Contender = seat.contender
    seat.handles = [contender.lock(f"bench:{serial:06}", LONG) for serial in range(count)]
    for handle in seat.handles:
        handle.acquire()
    return contender.key(f"bench:{count // 2:06}")


def weigh(bench: Bench, slug: str) -> None:
    held = bench.sizes.held_weighed
    with crew(slug, bench.url) as worker:
        worker.call(warm)
        bench.admin.flushall()
        before = settled_memory(bench.admin)
        key = worker.call(hold_many, held)
        after = settled_memory(bench.admin)
        keys = bench.admin.dbsize()
        alone = bench.admin.memory_usage(key)
    bench.admin.flushall()
    bench.rows[slug] = {
        "bytes": (after - before) / held,
        "key_alone": alone,
        "keys": keys / held,
    }


def measure(bench: Bench) -> None:
    for slug in SLUGS:
        bench.attempt(slug, weigh, bench, slug)


SCENARIO = Scenario(
    name="memory",
    title="Server memory per held lock",
    how=(
        "Growth of `used_memory` over {held_weighed:,} held locks with names of 12 characters, "
        "which includes all keys and the growth of tables, and `MEMORY USAGE` of the key of one "
        "lock."
    ),
    measure=measure,
    seconds=lambda sizes: len(SLUGS) * (2 + sizes.held_weighed / 2000),
    columns=(
        Column("bytes", "bytes per lock", number),
        Column("key_alone", "its key alone", number),
        Column("keys", "keys per lock", number),
    ),
    charts=(Chart("bytes", "bytes; lower is better"),),
)
