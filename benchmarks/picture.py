"""The results as bar charts in one picture."""

import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .contenders import EVERYONE
from .model import Chart, Scenario, Sizes
from .show import dig, number

OURS, OURS_LIGHT = "#0b7a5e", "#7cc4ae"
PEER, PEER_LIGHT = "#8a94a3", "#c9ced6"
INK, SOFT = "#1f2933", "#6b7580"
COLUMNS = 3


def draw(results: dict[str, Any], scenarios: Iterable[Scenario], path: Path) -> None:
    """Draw every chart of the scenarios that have run."""
    sizes = Sizes(**results["sizes"])
    charts = [
        (chart, results["scenarios"][scenario.name]["rows"])
        for scenario in scenarios
        if scenario.name in results["scenarios"]
        for chart in scenario.charts
    ]
    lines = -(-len(charts) // COLUMNS)
    height = 3.9 * lines + 1.1
    figure = Figure(figsize=(6.8 * COLUMNS, height))
    axes = list(chain.from_iterable(figure.subplots(lines, COLUMNS, squeeze=False)))
    for axis, (chart, rows) in zip(axes, charts, strict=False):
        _bars(axis, chart, rows, sizes)
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    environment = results["environment"]
    figure.suptitle(
        "django-redis-lock beside its peers, one server, one run",
        x=0.01, ha="left", fontsize=19, fontweight="bold", color=INK,
    )  # fmt: skip
    figure.text(
        0.01,
        1 - 0.75 / height,
        f"{environment['python']} · redis-py {environment['packages']['redis']}"
        f"{'' if environment['packages']['hiredis'] else ' without hiredis'} · "
        f"{environment['server']} · {environment['cpus']} CPUs · {environment['date'][:10]}"
        f"{' · QUICK FORM, ROUGH FIGURES' if results['quick'] else ''}",
        ha="left", fontsize=11, color=SOFT,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.85 / height), h_pad=2.2, w_pad=2.5)
    figure.savefig(path, dpi=110, facecolor="white")


def _bars(axis: Axes, chart: Chart, rows: dict[str, dict[str, Any]], sizes: Sizes) -> None:
    """Draw one chart: a horizontal bar, or one for each key, for every contender."""
    labels = list(chart.keys.values())
    thick = 0.74 / len(chart.keys)
    top = max((dig(row, key) or 0 for row in rows.values() for key in chart.keys), default=1) or 1
    floor = _floor(chart, rows) if chart.log else 0.0
    for place, (slug, row) in enumerate(rows.items()):
        ours = getattr(EVERYONE.get(slug), "ours", False)
        shades = (OURS, OURS_LIGHT) if ours else (PEER, PEER_LIGHT)
        for at, key in enumerate(chart.keys):
            y = place + (at - (len(chart.keys) - 1) / 2) * thick
            value = dig(row, key)
            text = "failed" if value is None else number(value)
            axis.barh(y, max(value or 0, floor), thick * 0.92, color=shades[at])
            if len(labels) > 1:
                text += f" {labels[at]}"
            axis.annotate(
                text, (max(value or 0, floor), y), (5, 0), textcoords="offset points",
                va="center", fontsize=9, color=INK if ours else SOFT,
            )  # fmt: skip
    axis.set_yticks(range(len(rows)), [row["title"] for row in rows.values()], fontsize=9)
    for label, slug in zip(axis.get_yticklabels(), rows, strict=True):
        if getattr(EVERYONE.get(slug), "ours", False):
            label.set(fontweight="bold", color=OURS)
    axis.set_ylim(max(len(rows), 5) - 0.5, -0.5)
    axis.set_title(
        sizes.fill(chart.title), loc="left", fontsize=12, fontweight="bold", color=INK, pad=10
    )
    scale = ", log scale" if chart.log else ""
    axis.set_xlabel(f"{chart.unit}{scale}; {chart.better} is better", fontsize=9, color=SOFT)
    if chart.log:
        axis.set_xscale("log")
        axis.set_xlim(floor, top * (top / floor) ** 0.35)
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_xlim(0, top * 1.35)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PEER_LIGHT)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", colors=SOFT, labelsize=9)
    axis.grid(axis="x", color="#eceff2", zorder=0)
    axis.set_axisbelow(True)


def _floor(chart: Chart, rows: dict[str, dict[str, Any]]) -> float:
    """Return where the bars of a logarithmic chart begin."""
    values = [dig(row, key) for row in rows.values() for key in chart.keys]
    least = min((value for value in values if value), default=1.0)
    return float(10 ** math.floor(math.log10(least / 2)))
