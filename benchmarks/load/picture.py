"""The results as one picture."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.picture import INK, OURS, PEER, PEER_LIGHT, SOFT
from benchmarks.show import number

from .plan import CELLS, EAGER, FEW, TITLES
from .plan import OURS as OURSELVES
from .shop.names import POSTGRESQL, SQLITE

LEFT_OUT = (EAGER,)
WARNING = "#c2410c"
"""The colour of a guard that oversold."""


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the sales on the first database that was measured, and the bystanders if there were."""
    database = POSTGRESQL if POSTGRESQL in results["sales"] else SQLITE
    sales = results["sales"][database]
    charts = [
        (f"Orders a second: {CELLS[cell].title.lower()}", rows, "orders_per_second", False)
        for cell, rows in sales.items()
        if cell != FEW.slug
    ]
    first = next(iter(sales))
    charts.append(("p99 of a buyer's wait: one hot product, 100 buyers", sales[first], "p99", True))
    if results["bystanders"]:
        title = "p99 of a page of another product meanwhile"
        charts.append((title, results["bystanders"], "bystander_p99", True))
    columns = min(3, len(charts))
    lines = -(-len(charts) // columns)
    figure = Figure(figsize=(6.6 * columns, 3.3 * lines + 0.8))
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, chart in zip(axes, charts, strict=False):
        _bars(axis, *chart[:3], wait=chart[3])
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    rough = " · QUICK FORM, ROUGH FIGURES" if results["quick"] else ""
    figure.suptitle(
        f"A flash sale on {database}, one run; orange: oversold{rough}",
        x=0.01, ha="left", fontsize=17, fontweight="bold", color=INK,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 0.97), h_pad=2, w_pad=2)
    with mpl.rc_context({"svg.hashsalt": "flash-sale"}):
        figure.savefig(path, facecolor="white", metadata={"Date": None})


def _bars(axis: Axes, title: str, rows: dict[str, Any], key: str, *, wait: bool = False) -> None:
    slugs = [slug for slug in TITLES if slug in rows and slug not in LEFT_OUT]
    measured = [(1000 if wait else 1) * rows[slug][key] for slug in slugs]
    least = min((value for value in measured if value > 0), default=1.0)
    # Whoever served nobody has no wait to show, and a logarithmic scale has no zero.
    values = [value if value > 0 else least / 2 if wait else 0.0 for value in measured]
    colours = [
        WARNING if rows[slug]["oversold"] else OURS if slug.startswith(OURSELVES) else PEER
        for slug in slugs
    ]
    axis.barh(range(len(slugs)), values, 0.68, color=colours)
    for place, (value, figure) in enumerate(zip(values, measured, strict=True)):
        text = number(round(figure, 1)) if figure > 0 else "nobody served"
        axis.annotate(
            text, (value, place), (5, 0), textcoords="offset points",
            va="center", fontsize=9, color=SOFT,
        )  # fmt: skip
    names = [TITLES[slug].replace("`", "") for slug in slugs]
    axis.set_yticks(range(len(slugs)), names, fontsize=9)
    axis.set_ylim(len(slugs) - 0.5, -0.5)
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    if wait:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 3, max(values) * 5)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("ms, log scale; lower is better", fontsize=9, color=SOFT)
    else:
        axis.set_xlim(0, max(values) * 1.2)
        axis.set_xlabel("orders/s; higher is better", fontsize=9, color=SOFT)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PEER_LIGHT)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", colors=SOFT, labelsize=9)
