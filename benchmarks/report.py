"""The results of the scenarios as a markdown page and as a picture, and the project's targets."""

from collections.abc import Iterable
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from benchmarks.bench import Chart, Scenario, Sizes
from benchmarks.contenders import EVERYONE
from benchmarks.frame.environment import described
from benchmarks.frame.figures import dig, number
from benchmarks.frame.table import table
from benchmarks.frame.targets import Target, verdicts
from benchmarks.scenarios.layouts import LAYOUTS

TARGETS = (
    Target(
        "uncontended pairs/s, ratio to redis-py", "uncontended.rows.ours", "ratio.median", ge, 1.2
    ),
    Target("round trips of an uncontended pair", "traffic.rows.ours", "round_trips", le, 2),
    Target("hand-off median, ratio to bare wake-up", "handoff.rows.ours", "ratio", le, 1.6),
    Target(
        "contended acquisitions/s, ratio to redis-py",
        "contended.rows.ours",
        "ratio.median",
        ge,
        0.9,
    ),
    Target(
        "contended acquisitions/s, ratio to python-redis-lock",
        "contended.rows.ours",
        "ratio_queue.median",
        ge,
        1.7,
    ),
    Target("contended, least/most served", "contended.rows.ours", "fairness.median", ge, 0.95),
    Target("waiting threads, extra connections", "waiting.rows.ours", "connections", le, 1),
    Target("waiting threads, commands/s", "waiting.rows.ours", "idle_commands_per_second", lt, 5),
    Target(
        "waiting threads, pairs served out of order", "waiting.rows.ours", "out_of_order", le, 0
    ),
    Target("listing, times faster than SCAN MATCH", "listing.rows.ours", "speedup.median", ge, 50),
    Target(
        "list of 100,000 locks, CPU s for a first view",
        "operators.rows.workers-1",
        "first_cpu",
        lt,
        0.3,
    ),
    Target(
        "list of 100,000 locks, CPU s for a view",
        "operators.rows.workers-1",
        "view_cpu",
        lt,
        0.3,
    ),
    Target("20 tabs on it, % of a core", "operators.rows.workers-1", "tabs_cpu", lt, 20),
    Target("20 tabs, 4 workers, % of a core", "operators.rows.workers-4", "tabs_cpu", lt, 20),
    Target("20 tabs, 4 workers, EVALSHA/s", "operators.rows.workers-4", "tabs_calls", lt, 20),
    Target("mixed views, MB of a worker", "operators.rows.workers-1", "views_memory", lt, 80),
    Target("20 tabs, MB of a worker", "operators.rows.workers-1", "memory", lt, 80),
    Target("`locks list`, s", "operators.rows.table", "seconds", lt, 3),
    Target("`locks list`, MB more than Django", "operators.rows.table", "memory_more", lt, 60),
    Target(
        "guarded Celery task that does nothing, ratio", "guarded.rows.ours", "ratio.median", ge, 0.9
    ),
    Target(
        "layouts that completed everything", "layouts.rows.queue", "completed", ge, len(LAYOUTS)
    ),
)


def markdown(results: dict[str, Any], scenarios: Iterable[Scenario], note: str = "") -> str:
    """Return the page: the targets, a table for each scenario, and the environment."""
    parts = ["# django-redis-lock beside its peers", described(results["environment"])]
    if results["quick"]:
        parts.append("**The quick form shows that the benchmark works; the figures are rough.**")
    if note:
        parts.append(note)
    if results["targets"]:
        parts += ["## Targets", verdicts(results["targets"])]
    for scenario in scenarios:
        if result := results["scenarios"].get(scenario.name):
            rows = ((row["title"], row) for row in result["rows"].values())
            parts += [f"## {result['title']}", result["how"], table(scenario.columns, rows)]
    return "\n\n".join(parts) + "\n"


def draw(results: dict[str, Any], scenarios: Iterable[Scenario], path: Path) -> None:
    """Draw every chart of the scenarios that have run."""
    from benchmarks.frame.picture import draw as draw_charts  # workers do without matplotlib

    sizes = Sizes(**results["sizes"])
    charts = [
        _chart(chart, results["scenarios"][scenario.name]["rows"], sizes)
        for scenario in scenarios
        if scenario.name in results["scenarios"]
        for chart in scenario.charts
    ]
    found = results["environment"]
    note = (
        f"{found['python']} · redis-py {found['packages']['redis']}"
        f"{'' if found['packages']['hiredis'] else ' without hiredis'} · "
        f"{found['server']} · {found['cpus']} CPUs · {found['date'][:10]}"
        f"{' · QUICK FORM, ROUGH FIGURES' if results['quick'] else ''}"
    )
    draw_charts(charts, "django-redis-lock beside its peers, one server, one run", note, path)


def _chart(chart: Chart, rows: dict[str, dict[str, Any]], sizes: Sizes) -> Any:
    from benchmarks.frame.picture import OURS, OURS_LIGHT, PEER, PEER_LIGHT, Bar, BarChart, Bars

    bars = []
    for slug, row in rows.items():
        ours = getattr(EVERYONE.get(slug), "ours", False)
        shades = (OURS, OURS_LIGHT) if ours else (PEER, PEER_LIGHT)
        each = []
        for (key, label), shade in zip(chart.keys.items(), shades, strict=False):
            value = dig(row, key)
            text = "failed" if value is None else number(value)
            each.append(Bar(value, f"{text} {label}".strip(), shade))
        bars.append(Bars(row["title"], ours, each))
    axis = f"{chart.unit}{', log scale' if chart.log else ''}; {chart.better} is better"
    return BarChart(sizes.fill(chart.title), axis, bars, log=chart.log)
