"""The results of the scenarios as a markdown page and as a picture, and the project's targets."""

from collections.abc import Iterable
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from benchmarks.bench import Chart, Scenario, Sizes
from benchmarks.contenders import EVERYONE
from benchmarks.frame.environment import described
from benchmarks.frame.figures import dig, number
from benchmarks.frame.table import Row, table
from benchmarks.frame.targets import Target, verdicts
from benchmarks.scenarios.layouts import LAYOUTS


def _target(row: str, figure: str, meets: Any, bound: float, what: str) -> Target:
    scenario, _, slug = row.partition(":")
    return Target(what, f"{scenario}.rows.{slug or 'ours'}", figure, meets, bound)


TARGETS = (
    _target("uncontended", "ratio.median", ge, 1.2, "uncontended pairs/s, ratio to redis-py"),
    _target("traffic", "round_trips", le, 2, "round trips of an uncontended pair"),
    _target("handoff", "ratio", le, 1.6, "hand-off median, ratio to bare wake-up"),
    _target("contended", "ratio.median", ge, 0.9, "contended, ratio to redis-py"),
    _target("contended", "ratio_queue.median", ge, 1.7, "contended, ratio to python-redis-lock"),
    _target("contended", "fairness.median", ge, 0.95, "contended, least/most served"),
    _target("waiting", "connections", le, 1, "waiting threads, extra connections"),
    _target("waiting", "idle_commands_per_second", lt, 5, "waiting threads, commands/s"),
    _target("waiting", "out_of_order", le, 0, "waiting threads, pairs served out of order"),
    _target("listing", "speedup.median", ge, 50, "listing, times faster than SCAN MATCH"),
    _target("operators:workers-1", "first_cpu", lt, 0.3, "100,000 locks, CPU s for a first view"),
    _target("operators:workers-1", "view_cpu", lt, 0.3, "100,000 locks, CPU s for a view"),
    _target("operators:workers-1", "tabs_cpu", lt, 20, "20 tabs on it, % of a core"),
    _target("operators:workers-4", "tabs_cpu", lt, 20, "20 tabs, 4 workers, % of a core"),
    _target("operators:workers-4", "tabs_calls", lt, 20, "20 tabs, 4 workers, EVALSHA/s"),
    _target("operators:workers-1", "views_memory", lt, 80, "mixed views, MB of a worker"),
    _target("operators:workers-1", "memory", lt, 80, "20 tabs, MB of a worker"),
    _target("operators:table", "seconds", lt, 3, "`locks list`, s"),
    _target("operators:table", "memory_more", lt, 60, "`locks list`, MB more than Django"),
    _target("guarded", "ratio.median", ge, 0.9, "guarded Celery task that does nothing, ratio"),
    _target("contention:on", "ratio.median", ge, 0.95, "`CONTENTION` on, uncontended pairs/s"),
    _target("contention:on", "crowd_ratio.median", ge, 0.98, "`CONTENTION` on, contended pairs/s"),
    _target("metrics:pair", "ratio.median", ge, 0.95, "metrics on, uncontended, ratio to off"),
    _target("metrics:crowd", "ratio.median", ge, 0.98, "metrics on, contended, ratio to off"),
    _target("layouts:queue", "completed", ge, len(LAYOUTS), "layouts that completed everything"),
    _target("tracing:noop", "ratio.median", ge, 0.95, "traces on without an SDK, pairs/s, ratio"),
    _target("tracing:noop", "contended_ratio.median", ge, 0.98, "the same, contended"),
    _target("tracing:unsampled", "ratio.median", ge, 0.95, "traces outside the sample, ratio"),
    _target("tracing:unsampled", "contended_ratio.median", ge, 0.98, "the same, contended"),
)


def markdown(results: dict[str, Any], scenarios: Iterable[Scenario], note: str = "") -> str:
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
    from benchmarks.frame.picture import draw as draw_charts  # workers do without matplotlib

    sizes = Sizes(**results["sizes"])
    charts = [
        _chart(chart, sizes.fill(chart.title or scenario.title), result["rows"])
        for scenario in scenarios
        if (result := results["scenarios"].get(scenario.name))
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


def _chart(chart: Chart, title: str, rows: dict[str, Row]) -> Any:
    from benchmarks.frame.picture import OURS, OURS_LIGHT, PEER, PEER_LIGHT, Bar, BarChart, Bars

    keys = {chart.keys: ""} if isinstance(chart.keys, str) else chart.keys
    bars = []
    for slug, row in rows.items():
        if "error" not in row and all(dig(row, key) is None for key in keys):
            continue  # this row is about something else
        ours = getattr(EVERYONE.get(slug), "ours", False)
        shades = (OURS, OURS_LIGHT) if ours else (PEER, PEER_LIGHT)
        each = []
        for (key, label), shade in zip(keys.items(), shades, strict=False):
            value = dig(row, key)
            text = "failed" if value is None else number(value)
            each.append(Bar(value, f"{text} {label}".strip(), shade))
        bars.append(Bars(row["title"], ours, each))
    axis = chart.axis.replace(";", ", log scale;") if chart.log else chart.axis
    return BarChart(title, axis, bars, log=chart.log)
