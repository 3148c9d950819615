"""How much memory of the server one held lock takes."""

from ..contenders import LOCKS, Contender
from ..model import Bench, Chart, Column, Scenario
from ..server import settled_memory
from ..show import number
from ..workers import Crew, Seat, warm

SLUGS = [contender.slug for contender in LOCKS]
LONG = 600


def hold_many(seat: Seat, count: int) -> str:
    """Hold so many locks and return the key of one in the middle."""
    seat.handles = [seat.contender.lock(f"bench:{serial:06}", LONG) for serial in range(count)]
    for handle in seat.handles:
        handle.acquire()
    contender: Contender = seat.contender
    return contender.key(f"bench:{count // 2:06}")


def weigh(bench: Bench, slug: str) -> None:
    """Compare the memory in use before and while the locks are held."""
    held = bench.sizes.held_weighed
    with Crew(slug, bench.url) as crew:
        crew.call(warm)
        bench.admin.flushall()
        before = settled_memory(bench.admin)
        key = crew.call(hold_many, held)
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
    """Weigh one contender after the other on an empty server."""
    for slug in SLUGS:
        bench.attempt(slug, weigh, bench, slug)


SCENARIO = Scenario(
    name="memory",
    title="Server memory per held lock",
    how=(
        "Growth of `used_memory` over {held_weighed:,} held locks with names of 12 characters, all "
        "keys and the growth of tables included, and `MEMORY USAGE` of the key of one lock."
    ),
    measure=measure,
    columns=(
        Column("bytes", "bytes per lock", number),
        Column("key_alone", "its key alone", number),
        Column("keys", "keys per lock", number),
    ),
    charts=(Chart("Server memory per held lock", {"bytes": ""}, "bytes", "lower"),),
)
