"""Many threads of one process in line for a lock that another process holds."""

from functools import partial
from threading import Thread
from time import sleep

from ..contenders import LOCKS
from ..model import Bench, Chart, Column, Scenario
from ..server import commands, connections, grown, wait_until
from ..show import breakdown, number
from ..workers import Crew, Seat, warm

SLUGS = [contender.slug for contender in LOCKS]


def look(seat: Seat) -> None:
    """Open the connection of the benchmark itself, which is not counted."""
    seat.contender.admin.ping()


def hold(seat: Seat, name: str) -> None:
    """Take the lock."""
    seat.handles = [seat.contender.lock(name)]
    seat.handles[0].acquire()


def release(seat: Seat) -> None:
    """Let go of it."""
    seat.handles[0].release()


def line_up(seat: Seat, name: str, count: int) -> None:
    """Start the threads one by one, each only when the one before is known to wait."""

    def body(place: int) -> None:
        handle = seat.contender.lock(name)
        handle.acquire()
        seat.notes.append(place)
        handle.release()

    for place in range(1, count + 1):
        thread = Thread(target=body, args=(place,), daemon=True)
        seat.threads.append(thread)
        thread.start()
        wait_until(
            partial(seat.contender.in_line, name, thread, place), f"thread {place} is in line"
        )


def served(seat: Seat) -> list[int]:
    """Wait for all threads and tell in which order they were served."""
    for thread in seat.threads:
        thread.join(60)
    return seat.notes


def measure(bench: Bench) -> None:
    """Line up, wait, drain; one contender after the other."""
    for slug in SLUGS:
        bench.attempt(slug, line, bench, slug)


def line(bench: Bench, slug: str) -> None:
    """Do so for one contender, with one process that holds and one that waits."""
    count, seconds, name = bench.sizes.threads, bench.sizes.idle_seconds, f"bench:{slug}"
    with Crew(slug, bench.url) as holder, Crew(slug, bench.url) as waiter:
        holder.call(warm)
        connected = connections(bench.admin)
        waiter.call(look)
        waiter.call(warm)
        holder.call(hold, name)

        waiter.call(line_up, name, count)
        before = commands(bench.admin)
        sleep(seconds)
        idle = sum(grown(before, commands(bench.admin)).values()) / seconds
        extra = connections(bench.admin) - connected - 1  # any use of the server takes one

        before = commands(bench.admin)
        holder.call(release)
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
    """Print whether the line was kept."""
    return "first come, first served" if not value else f"{value:.0%} of the pairs swapped"


SCENARIO = Scenario(
    name="waiting",
    title="{threads} threads of one process waiting for one lock",
    how=(
        "The threads come one by one, each when the one before is known to wait. Connections of "
        "their process beyond the first, from `CLIENT LIST`; commands from `INFO commandstats`, "
        "while all wait and while the line drains after one release."
    ),
    measure=measure,
    columns=(
        Column("connections", "extra connections", number),
        Column("idle_commands_per_second", "commands/s while waiting", number),
        Column("commands_per_handoff", "commands per hand-off", number),
        Column("out_of_order", "order", in_order),
        Column("by_command", "which, per hand-off", breakdown),
    ),
    charts=(
        Chart(
            "{threads} waiting threads: connections",
            {"connections": ""},
            "extra connections",
            "lower",
        ),
        Chart(
            "{threads} waiting threads: load",
            {"idle_commands_per_second": ""},
            "commands per second while waiting",
            "lower",
        ),
    ),
)
