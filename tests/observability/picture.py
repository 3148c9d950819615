"""A picture of the dashboard, from the answers of a Prometheus to the dashboard's expressions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tests.observability.dashboard import Panel, panels
from tests.observability.dashboard import rows as dashboard_rows
from tests.observability.stage import Stage

INK, PAPER, SHEET, GRID = "#d8d9da", "#181b1f", "#111217", "#2c3235"
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#b877d9", "#ff7383", "#8ab8ff", "#c0d8ff")
ALERT = "#c4162a"
CELL_WIDTH, CELL_HEIGHT = 0.7, 0.36
"""Inches of a unit of the grid."""
_TIMES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))


def draw(stage: Stage, path: Path) -> int:
    """Draw all panels where they stand; return how many."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = panels()
    lines = max(panel.place["y"] + panel.place["h"] for panel in shown)
    style = {
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "font.size": 9,
        "font.family": "DejaVu Sans",
    }
    with mpl.rc_context(style):
        size = (24 * CELL_WIDTH, lines * CELL_HEIGHT)
        figure = pyplot.figure(figsize=size, facecolor=SHEET)
        for panel in shown:
            place = panel.place
            box = (
                (place["x"] + 0.15) / 24,
                1 - (place["y"] + place["h"] - 0.12) / lines,
                (place["w"] - 0.3) / 24,
                (place["h"] - 0.24) / lines,
            )
            frame = figure.add_axes(box, facecolor=PAPER, xticks=[], yticks=[])
            for spine in frame.spines.values():
                spine.set_color(GRID)
            frame.set_title(
                panel.title,
                loc="left",
                x=0.012 if place["w"] > 6 else 0.05,
                y=1,
                pad=-14,
                fontsize=10,
                fontweight="bold",
            )
            (_draw_stat if panel.kind == "stat" else _draw_series)(figure, box, panel, stage)
        for title, line in dashboard_rows():
            y = 1 - (line + 0.75) / lines
            figure.text(0.15 / 24, y, title, fontsize=12, fontweight="bold")
        figure.savefig(path, dpi=80, facecolor=SHEET)
        pyplot.close(figure)
    return len(shown)


def _answers(panel: Panel, stage: Stage) -> list[tuple[str, list[float], list[float]]]:
    """Return the label, the seconds and the values of each series."""
    found = []
    for query in panel.queries:
        for series in stage.prometheus.series(query.expr, stage.begin, stage.end):
            times = [float(time) - stage.begin for time, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            found.append((query.label(series["metric"]), times, values))
    return found


def _draw_stat(figure: Any, box: tuple[float, ...], panel: Panel, stage: Stage) -> None:
    _, times, values = _answers(panel, stage)[0]
    x, y, w, h = box
    axes = figure.add_axes((x, y, w, h * 0.35))
    axes.fill_between(times, values, color=COLOURS[2], alpha=0.25, linewidth=0)
    axes.plot(times, values, color=COLOURS[2], linewidth=1)
    axes.set_ylim(0, max(*values, 1e-9) * 1.15)
    axes.margins(x=0)
    axes.axis("off")
    text = written(values[-1], panel.unit)
    if "Servers" in panel.title:
        text = "up" if values[-1] else "down"
    figure.text(x + w / 2, y + h * 0.53, text, ha="center", va="center", fontsize=24)


def _draw_series(figure: Any, box: tuple[float, ...], panel: Panel, stage: Stage) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    x, y, w, h = box
    answers = _answers(panel, stage)
    axes = figure.add_axes((x + 0.032, y + h * 0.3, w - 0.042, h * 0.55), facecolor=PAPER)
    top = 0.0
    for (label, times, values), colour in zip(answers, COLOURS * 3, strict=False):
        finite = [value for value in values if math.isfinite(value)]
        top = max([top, *finite])
        last = f"{label}   max {written(max(finite, default=math.nan), panel.unit)}"
        axes.plot(times, values, color=colour, linewidth=1.4, label=last)
        axes.fill_between(times, values, color=colour, alpha=0.08, linewidth=0)
    axes.set_xlim(0, stage.end - stage.begin)
    axes.set_ylim(0, 1 if panel.unit == "percentunit" else top * 1.1 or 1)
    if panel.unit == "percentunit":
        axes.axhline(0.5, color=ALERT, linewidth=1, linestyle="--")
    axes.grid(color=GRID, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    axes.tick_params(length=0, labelsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=panel.unit == "short"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, panel.unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    if not answers:
        return
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.12),
        ncols=2 if w < 0.4 else 3,
        frameon=False,
        fontsize=8,
        borderaxespad=0,
        handlelength=1.2,
        columnspacing=1.2,
    )


def written(value: float, unit: str) -> str:
    """Return a value as the dashboard writes it."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s" and value:
        size, name = next((each for each in _TIMES if value >= each[0]), _TIMES[-1])
        return f"{value / size:.3g} {name}"
    if unit == "short":
        return f"{value:,.0f}"
    return f"{value:.3g}" + ("/s" if unit == "ops" else "")
