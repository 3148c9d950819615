"""What a scenario is and what it gives back; everything in a result can be written as JSON."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from .contenders import EVERYONE
from .workers import Crew, WorkerError

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How long and how large; the quick form only shows that the benchmark works."""

    pair_rounds: int = 30
    pair_seconds: float = 0.25
    traffic_pairs: int = 500
    processor_rounds: int = 9
    processor_pairs: int = 500
    handoff_rounds: int = 20
    handoff_each: int = 10
    crowd: int = 8
    crowd_rounds: int = 9
    crowd_seconds: float = 2.0
    threads: int = 100
    idle_seconds: float = 3.0
    keys: int = 1_000_000
    held_listed: int = 1_000
    list_rounds: int = 9
    held_weighed: int = 10_000
    task_rounds: int = 15
    task_batch: int = 300
    task_singles: int = 40
    layout_rounds: int = 12
    layout_each: int = 5
    operator_locks: int = 100_000
    operator_tabs: int = 20
    operator_rounds: int = 20
    operator_seconds: float = 60.0

    def fill(self, text: str) -> str:
        """Put the sizes into a text that names them, such as `{keys:,} keys`."""
        return text.format_map(vars(self))


QUICK = Sizes(
    pair_rounds=5,
    pair_seconds=0.15,
    traffic_pairs=50,
    processor_rounds=2,
    processor_pairs=200,
    handoff_rounds=3,
    handoff_each=5,
    crowd_rounds=1,
    crowd_seconds=1.0,
    idle_seconds=1.0,
    keys=200_000,
    list_rounds=3,
    held_weighed=2_000,
    task_rounds=1,
    task_batch=200,
    task_singles=30,
    layout_rounds=2,
    layout_each=3,
    operator_locks=5_000,
    operator_rounds=1,
    operator_seconds=3.0,
)


@dataclass
class Bench:
    """The server under test and how much to measure on it."""

    url: str
    port: int
    sizes: Sizes
    admin: Redis
    rows: dict[str, Row] = field(default_factory=dict)

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def fit(self, slugs: Sequence[str]) -> list[str]:
        """Return those that have not failed so far."""
        return [slug for slug in slugs if "error" not in self.rows.get(slug, {})]

    @contextmanager
    def crews(self, slugs: Sequence[str], size: int = 1) -> Iterator[dict[str, Crew]]:
        """Start the workers of all contenders at once; one that fails to start gets its row."""
        started = {slug: Crew(slug, self.url, size) for slug in slugs}
        try:
            yield {slug: crew for slug, crew in started.items() if self.attempt(slug, crew.ready)}
        finally:
            for crew in started.values():
                crew.close()

    def attempt(self, slug: str, action: Callable[..., Any], *args: Any) -> Any:
        """Run a part of a scenario; a failure becomes the contender's row and None is returned."""
        try:
            return action(*args)
        except (WorkerError, TimeoutError) as error:
            self.rows[slug] = {"error": str(error)}
            known = EVERYONE.get(slug)
            self.say(f"{known.title if known else slug}: {error}")
            return None


@dataclass(frozen=True)
class Column:
    """A column of a table: where its value stands in a row, and how to print it."""

    key: str
    heading: str
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Chart:
    """A bar chart of one or two values of each row."""

    title: str
    keys: dict[str, str]
    unit: str
    better: str
    log: bool = False


@dataclass(frozen=True)
class Scenario:
    """One thing that is measured, and how to show it."""

    name: str
    title: str
    how: str
    measure: Callable[[Bench], None]
    columns: tuple[Column, ...]
    charts: tuple[Chart, ...]

    def run(self, bench: Bench) -> dict[str, Any]:
        """Measure on an empty server and return the rows by contender."""
        bench.rows = {}
        bench.admin.flushall()
        began = time.monotonic()
        self.measure(bench)
        for slug, row in bench.rows.items():
            if slug in EVERYONE:
                row["title"] = EVERYONE[slug].title
        return {
            "title": bench.sizes.fill(self.title),
            "how": bench.sizes.fill(self.how),
            "seconds": round(time.monotonic() - began, 1),
            "rows": bench.rows,
        }
