"""How much is measured, in the long form and in the quick one."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The sizes of a run; times are in seconds."""

    held: tuple[tuple[int, int], ...] = ((1_000, 1), (10_000, 2), (100_000, 4))
    """How many locks are held, and by how many processes."""
    lease: int = 30
    """The lease of these; a third of it passes between two renewals."""
    periods: int = 3
    """For how many of those thirds the renewals are watched."""
    weighed: int = 10_000
    """Locks of which the memory is measured."""
    rush: float = 10.0
    """For how long pairs, or renewals, are sent as fast as the server takes them."""
    recorded: int = 2_000
    """Pairs of a real client that are replayed."""
    connections: int = 50
    """On how many connections."""
    renewers: tuple[int, ...] = (1, 2)
    """Processes that renew as fast as they can."""
    waiters: tuple[tuple[str, int], ...] = (
        ("threads", 100),
        ("threads", 1_000),
        ("asyncio tasks", 1_000),
    )
    idle: float = 10.0
    """For how long they are watched while they wait."""

    def parts(self) -> Iterator[tuple[str, float, str, tuple[object, ...]]]:
        """Yield the title of each part, about how long it takes, its method and arguments."""
        yield "bytes of a held lock", 2 + self.weighed / 3_000, "weigh", ()
        yield "pairs as fast as the server takes them", 3 + self.rush, "replay", ()
        for count in self.renewers:
            title = f"renewals as fast as {count} can send them"
            yield title, 3 + self.rush, "rush", (count,)
        for locks, processes in self.held:
            seconds = 3 + locks / 2_500 + (self.periods + 1) * self.lease / 3
            yield f"{locks:,} locks held and renewed", seconds, "hold", (locks, processes)
        for kind, count in self.waiters:
            title = f"{count:,} {kind} that wait"
            yield title, 4 + count / 300 + self.idle, "wait", (kind, count)


LONG = Plan()
QUICK = Plan(
    held=((200, 1), (1_000, 2)),
    lease=3,
    periods=2,
    weighed=1_000,
    rush=1.0,
    recorded=200,
    connections=10,
    renewers=(1,),
    waiters=(("threads", 50), ("asyncio tasks", 100)),
    idle=1.0,
)
"""Shows only that everything can be measured."""
