"""Many threads of one process that wait for a lock of another process."""

from functools import partial
from threading import Thread
from time import sleep

from benchmarks.bench import Bench, Chart, Scenario, Seat, crew, warm
from benchmarks.contenders import LOCKS
from benchmarks.frame.figures import breakdown, number
from benchmarks.frame.server import commands, connections, grown, wait_until
from benchmarks.frame.table import Column
from benchmarks.scenarios.handoff import hold, release

SLUGS = [contender.slug for contender in LOCKS]


def connect(seat: Seat) -> None:
    """Open the connection of the benchmark itself, which is not counted."""
    seat.contender.admin.ping()


def queue_up(seat: Seat, name: str, count: int) -> None:
    """Start the threads one by one, each once the one before is known to wait."""

    def body(place: int) -> None:
        handle = seat.contender.lock(name)
        handle.acquire()
        seat.notes.append(place)
        handle.release()

    for place in range(1, count + 1):
        thread = Thread(target=body, args=(place,), daemon=True)
        seat.threads.append(thread)
        thread.start()
        wait_until(partial(seat.contender.waits, name, thread, place), f"thread {place} waits")


def served(seat: Seat) -> list[int]:
    """Wait for all threads; return the order in which they were served."""
    for thread in seat.threads:
        thread.join(60)
    return seat.notes


def measure(bench: Bench) -> None:
    for slug in SLUGS:
        bench.attempt(slug, watch, bench, slug)


def watch(bench: Bench, slug: str) -> None:
    count, seconds, name = bench.sizes.threads, bench.sizes.idle_seconds, f"bench:{slug}"
    with crew(slug, bench.url) as holder, crew(slug, bench.url) as waiter:
        holder.call(warm)
        connected, _ = connections(bench.admin)
        waiter.call(connect)
        waiter.call(warm)
        holder.call(hold, name)

        waiter.call(queue_up, name, count)
        before = commands(bench.admin)
        sleep(seconds)
        idle = sum(grown(before, commands(bench.admin)).values()) / seconds
        extra = connections(bench.admin)[0] - connected - 1  # any use of the server takes one

        before = commands(bench.admin)
        holder.call(release, 0)
        order = waiter.call(served)
        drain = grown(before, commands(bench.admin))
    if len(order) != count:
        bench.rows[slug] = {"error": f"only {len(order)} of {count} threads were served"}
        return
    swapped = sum(b < a for i, a in enumerate(order) for b in order[i:])
    bench.rows[slug] = {
        "connections": extra,
        "idle_commands_per_second": idle,
        "commands_per_handoff": sum(drain.values()) / count,
        "out_of_order": swapped / (count * (count - 1) / 2),
        "order": order,
        "by_command": {command: calls / count for command, calls in drain.items()},
    }


def in_order(value: float) -> str:
    return f"{value:.0%} of the pairs swapped" if value else "first come, first served"


SCENARIO = Scenario(
    name="waiting",
    title="{threads} threads of one process waiting for one lock",
    how=(
        "The threads come one by one, each once the one before is known to wait. Connections of "
        "their process beyond the first, from `CLIENT LIST`; commands from `INFO commandstats`, "
        "while all wait and while the queue drains after one release."
    ),
    measure=measure,
    seconds=lambda sizes: len(SLUGS) * (5 + sizes.idle_seconds),
    columns=(
        Column("connections", "extra connections", number),
        Column("idle_commands_per_second", "commands/s while waiting", number),
        Column("commands_per_handoff", "commands per hand-off", number),
        Column("out_of_order", "order", in_order),
        Column("by_command", "which, per hand-off", breakdown),
    ),
    charts=(
        Chart(
            "connections",
            "extra connections; lower is better",
            "{threads} waiting threads: connections",
        ),
        Chart(
            "idle_commands_per_second",
            "commands per second while waiting; lower is better",
            "{threads} waiting threads: load",
        ),
    ),
)
