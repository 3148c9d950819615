"""The dashboard as data: its panels and their expressions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from example_project.service import ROOT

FILE = ROOT / "docs" / "observability" / "dashboard.json"
VARIABLES = {
    "$__rate_interval": "10s",
    "$__range": "90s",
    "$using": ".*",
    "$group": ".*",
}
"""What Grafana puts in; the rate interval is longer there, as it scrapes less often."""


@dataclass(frozen=True)
class Query:
    """One expression of a panel, and the label of its series."""

    expr: str
    legend: str

    def label(self, series: dict[str, str]) -> str:
        text = self.legend
        for name, value in series.items():
            text = text.replace("{{" + name + "}}", value)
        return text


@dataclass(frozen=True)
class Panel:
    """One panel."""

    title: str
    kind: str
    unit: str
    description: str
    place: dict[str, int]
    queries: list[Query]


def read() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    loaded = json.loads(FILE.read_text())
    assert isinstance(loaded, dict)
    return loaded


def rows() -> list[tuple[str, int]]:
    """Return the headings, each with the line of the grid where it stands."""
    return [
        (each["title"], each["gridPos"]["y"]) for each in read()["panels"] if each["type"] == "row"
    ]


def panels() -> list[Panel]:
    """Return the panels that show something, without the headings of rows."""
    return [
        Panel(
            each["title"],
            each["type"],
            each["fieldConfig"]["defaults"]["unit"],
            each["description"],
            each["gridPos"],
            [Query(_filled(item["expr"]), item["legendFormat"]) for item in each["targets"]],
        )
        for each in read()["panels"]
        if each["type"] != "row"
    ]


def _filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr
