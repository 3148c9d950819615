"""What the scenarios share: their sizes, the server under test, and how a scenario is shown."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from threading import Thread
from typing import Any, TypeVar

from redis import Redis

from benchmarks.contenders import EVERYONE, Handle
from benchmarks.frame.run import Run, say
from benchmarks.frame.table import Column, Row
from benchmarks.frame.workers import Crew, WorkerError

T = TypeVar("T")


def size(default: float, quick: float) -> Any:
    """Return a field of `Sizes` with its values for the long and the quick form."""
    return field(default=default, metadata={"quick": quick})


@dataclass(frozen=True)
class Sizes:
    """How long and how large; the quick form only shows that the benchmark works."""

    pair_rounds: int = size(30, 5)
    pair_seconds: float = size(0.25, 0.15)
    traffic_pairs: int = size(500, 50)
    processor_rounds: int = size(9, 2)
    processor_pairs: int = size(500, 200)
    handoff_rounds: int = size(20, 3)
    handoff_each: int = size(10, 5)
    crowd: int = size(8, 8)
    crowd_rounds: int = size(9, 1)
    crowd_seconds: float = size(2.0, 1.0)
    threads: int = size(100, 100)
    idle_seconds: float = size(3.0, 1.0)
    keys: int = size(1_000_000, 200_000)
    held_listed: int = size(1_000, 1_000)
    list_rounds: int = size(9, 3)
    held_weighed: int = size(10_000, 2_000)
    task_rounds: int = size(15, 1)
    task_batch: int = size(300, 200)
    task_singles: int = size(40, 30)
    layout_rounds: int = size(12, 2)
    layout_each: int = size(5, 3)
    overhead_rounds: int = size(200, 3)
    overhead_seconds: float = size(0.1, 0.1)
    operator_locks: int = size(100_000, 5_000)
    operator_tabs: int = size(20, 20)
    operator_rounds: int = size(20, 1)
    operator_seconds: float = size(60.0, 3.0)

    def fill(self, text: str) -> str:
        """Put the sizes into a text that names them, such as `{keys:,} keys`."""
        return text.format_map(vars(self))


QUICK = Sizes(**{each.name: each.metadata["quick"] for each in fields(Sizes)})


class Seat:
    """What a worker process keeps between two calls."""

    def __init__(self, slug: str, url: str) -> None:
        self.contender: Any = EVERYONE[slug](url)
        self.handles: list[Handle] = []
        self.threads: list[Thread] = []
        self.notes: list[Any] = []


def crew(slug: str, url: str, size: int = 1) -> Crew:
    return Crew(size, Seat, slug, url)


def warm(seat: Seat, name: str = "warm") -> None:
    """Open the connection and load the scripts, so that no measurement pays for it."""
    for serial in range(3):
        handle = seat.contender.lock(f"{name}:{serial}")
        handle.acquire()
        handle.release()


@dataclass
class Bench:
    """The server under test, and the rows of the scenario that runs."""

    url: str
    port: int
    sizes: Sizes
    admin: Redis
    run: Run
    rows: dict[str, Row] = field(default_factory=dict)

    def fit(self, slugs: Sequence[str]) -> list[str]:
        return [slug for slug in slugs if "error" not in self.rows.get(slug, {})]

    @contextmanager
    def crews(self, slugs: Sequence[str], size: int = 1) -> Iterator[dict[str, Crew]]:
        """Start the workers of all contenders at once, without those that fail to start."""
        started = {slug: crew(slug, self.url, size) for slug in slugs}
        try:
            yield {slug: each for slug, each in started.items() if self.attempt(slug, each.ready)}
        finally:
            for each in started.values():
                each.close()

    def attempt(self, slug: str, action: Callable[..., T], *args: Any) -> T | None:
        """Call a part of a scenario; a failure becomes the contender's row, and the result None."""
        try:
            return action(*args)
        except (WorkerError, TimeoutError) as error:
            self.rows[slug] = {"error": str(error)}
            say(f"  {EVERYONE[slug].title if slug in EVERYONE else slug}: {error}")
            return None

    def rounds(
        self, count: int, slugs: Sequence[str], measure: Callable[[str, int], T]
    ) -> dict[str, list[T]]:
        """Let every contender that has not failed run once in each round, in random order."""

        def once(slug: str, turn: int) -> T | None:
            return self.attempt(slug, measure, slug, turn) if self.fit([slug]) else None

        return self.run.rounds(count, slugs, once)


@dataclass(frozen=True)
class Chart:
    """A bar chart of a value of each row, by its path; or of several, with labels for the bars."""

    keys: str | dict[str, str]
    axis: str
    title: str = ""
    """That of the scenario if empty."""
    log: bool = False


@dataclass(frozen=True)
class Scenario:
    """One thing that is measured, and how to show it."""

    name: str
    title: str
    how: str
    measure: Callable[[Bench], None]
    seconds: Callable[[Sizes], float]
    """About how long it takes."""
    columns: tuple[Column, ...]
    charts: tuple[Chart, ...]

    def run(self, bench: Bench) -> dict[str, Any] | None:
        """Measure on an empty server; return the rows by contender, None for no rows at all."""
        bench.rows = {}
        bench.admin.flushall()
        title = bench.sizes.fill(self.title)
        began = bench.run.seconds
        bench.run.part(title, lambda: self.measure(bench))
        for slug, row in bench.rows.items():
            if slug in EVERYONE:
                row["title"] = EVERYONE[slug].title
        return bench.rows and {
            "title": title,
            "how": bench.sizes.fill(self.how),
            "seconds": round(bench.run.seconds - began, 1),
            "rows": bench.rows,
        }
