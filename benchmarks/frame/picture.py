"""Results as bar charts in one picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

OURS, OURS_LIGHT = "#0b7a5e", "#7cc4ae"
PEER, PEER_LIGHT = "#8a94a3", "#c9ced6"
WARNING = "#c2410c"
INK, SOFT = "#1f2933", "#6b7580"
COLUMNS = 3


@dataclass(frozen=True)
class Bar:
    """A horizontal bar; one without a value has only its text."""

    value: float | None
    text: str
    colour: str
    reach: tuple[float, float] | None = None
    """The lowest and the highest value of some rounds, drawn as a thin line."""


@dataclass(frozen=True)
class Bars:
    """The bars of one contender, with its title."""

    title: str
    ours: bool
    bars: Sequence[Bar]


@dataclass(frozen=True)
class BarChart:
    """A chart with one or more bars for each contender."""

    title: str
    axis: str
    rows: Sequence[Bars]
    log: bool = False


def draw(charts: Sequence[BarChart], title: str, note: str, path: Path) -> None:
    """Draw the charts; the format follows from the suffix of the path."""
    columns = max(1, min(COLUMNS, len(charts)))
    lines = max(1, -(-len(charts) // columns))
    height = 3.9 * lines + 1.1
    figure = Figure(figsize=(6.8 * columns, height))
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, chart in zip(axes, charts, strict=False):
        _draw(axis, chart)
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=19, fontweight="bold", color=INK)
    figure.text(0.01, 1 - 0.75 / height, note, ha="left", fontsize=11, color=SOFT)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.85 / height), h_pad=2.2, w_pad=2.5)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": path.stem}):  # equal results give equal files
        figure.savefig(path, dpi=110, facecolor="white", metadata=metadata)


def _draw(axis: Axes, chart: BarChart) -> None:
    bars = [bar for row in chart.rows for bar in row.bars if bar.value]
    values = [value for bar in bars for value in (bar.value, *(bar.reach or ())) if value]
    top = max(values, default=1.0)
    floor = float(10 ** math.floor(math.log10(min(values, default=1.0) / 2))) if chart.log else 0.0
    for place, row in enumerate(chart.rows):
        thick = 0.74 / len(row.bars)
        for at, bar in enumerate(row.bars):
            y = place + (at - (len(row.bars) - 1) / 2) * thick
            length = max(bar.value or 0, floor)
            axis.barh(y, length, thick * 0.92, color=bar.colour)
            end = length
            if bar.reach:
                axis.plot(bar.reach, (y, y), color=INK, linewidth=1, marker="|", markersize=5)
                end = max(length, bar.reach[1])
            axis.annotate(
                bar.text, (end, y), (5, 0), textcoords="offset points",
                va="center", fontsize=9, color=INK if row.ours else SOFT,
            )  # fmt: skip
    axis.set_yticks(range(len(chart.rows)), [row.title for row in chart.rows], fontsize=9)
    for label, row in zip(axis.get_yticklabels(), chart.rows, strict=True):
        if row.ours:
            label.set(fontweight="bold", color=OURS)
    axis.set_ylim(max(len(chart.rows), 5) - 0.5, -0.5)
    axis.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
    axis.set_xlabel(chart.axis, fontsize=9, color=SOFT)
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
