"""The figures the project has set itself, and whether a run has met them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import ge, le, lt
from typing import Any

from .scenarios.layouts import LAYOUTS
from .show import dig, number

Results = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A bound on one figure of ours."""

    what: str
    path: str
    meets: Callable[[Any, Any], Any]
    bound: float
    row: str = "ours"

    def wanted(self) -> str:
        """Say what is asked for."""
        words = {ge: "at least", le: "at most", lt: "under"}
        return f"{words[self.meets]} {number(self.bound)}"


TARGETS = (
    Target("uncontended pairs/s, ratio to redis-py", "uncontended:ratio.median", ge, 1.2),
    Target("round trips of an uncontended pair", "traffic:round_trips", le, 2),
    Target("hand-off median, ratio to bare wake-up", "handoff:ratio", le, 1.6),
    Target("contended acquisitions/s, ratio to redis-py", "contended:ratio.median", ge, 0.9),
    Target(
        "contended acquisitions/s, ratio to python-redis-lock",
        "contended:ratio_queue.median",
        ge,
        1.7,
    ),
    Target("contended, least/most served", "contended:fairness.median", ge, 0.95),
    Target("waiting threads, extra connections", "waiting:connections", le, 1),
    Target("waiting threads, commands/s", "waiting:idle_commands_per_second", lt, 5),
    Target("waiting threads, pairs served out of order", "waiting:out_of_order", le, 0),
    Target("listing, times faster than SCAN MATCH", "listing:speedup.median", ge, 50),
    Target(
        "list of 100,000 locks, CPU s a first view", "operators:first_cpu", lt, 0.3, "workers-1"
    ),
    Target("list of 100,000 locks, CPU s a view", "operators:view_cpu", lt, 0.3, "workers-1"),
    Target("20 tabs on it, % of a core", "operators:tabs_cpu", lt, 20, "workers-1"),
    Target("20 tabs, 4 workers, % of a core", "operators:tabs_cpu", lt, 20, "workers-4"),
    Target("20 tabs, 4 workers, EVALSHA/s", "operators:tabs_calls", lt, 20, "workers-4"),
    Target("mixed views, MB of a worker", "operators:views_memory", lt, 80, "workers-1"),
    Target("20 tabs, MB of a worker", "operators:memory", lt, 80, "workers-1"),
    Target("`locks list`, s", "operators:seconds", lt, 3, "table"),
    Target("`locks list`, MB more than Django", "operators:memory_more", lt, 60, "table"),
    Target("guarded Celery task that does nothing, ratio", "guarded:ratio.median", ge, 0.9),
    Target("layouts on which everything was done", "layouts:completed", ge, len(LAYOUTS), "queue"),
)


def judged(scenarios: Results) -> Iterator[dict[str, Any]]:
    """Yield each target whose scenario has run, with the figure and the verdict."""
    for target in TARGETS:
        scenario, path = target.path.split(":")
        if scenario in scenarios:
            value = dig(scenarios[scenario]["rows"].get(target.row, {}), path)
            yield {
                "what": target.what,
                "target": target.wanted(),
                "value": value,
                "met": value is not None and bool(target.meets(value, target.bound)),
            }
