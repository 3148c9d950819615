"""The dashboard asks for what there is, and a real Prometheus has answers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from example_project.service import ROOT
from tests.observability import dashboard, picture
from tests.observability.stage import RULES, Stage

PICTURE = ROOT / "docs" / "images" / "metrics.png"


def metrics() -> set[str]:
    """Return the names of our metrics, as Prometheus stores them."""
    from django_redis_lock.contrib.prometheus import collector  # noqa: F401 - registers them

    names = set()
    for family in REGISTRY.collect():
        if family.name.startswith("django_redis_lock_"):
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdjango_redis_lock_\w+", text))


def test_dashboard_and_rules_name_only_metrics_that_exist() -> None:
    """Each metric is in a panel; of a histogram, one of its series is."""
    in_panels = named(
        " ".join(query.expr for panel in dashboard.panels() for query in panel.queries)
    )
    assert in_panels <= metrics()
    assert named(RULES.read_text()) <= metrics()
    stems = {re.sub("_(bucket|sum|count)$", "", name) for name in metrics()}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in in_panels} == stems


def test_dashboard_can_be_imported() -> None:
    """Grafana asks for the data source; panels have titles, units and places of their own."""
    whole = dashboard.read()
    assert whole["id"] is None
    assert [each["name"] for each in whole["templating"]["list"]] == [
        "datasource",
        "using",
        "group",
    ]
    ids = [each["id"] for each in whole["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in dashboard.panels():
        assert panel.title
        assert panel.unit
        assert panel.description.endswith((".", "?"))
        x, y, w, h = (panel.place[side] for side in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert not taken & cells, panel.title
        assert x + w <= 24
        taken |= cells


@pytest.mark.parametrize("panel", dashboard.panels(), ids=lambda panel: panel.title)
def test_panel_shows_data_of_a_real_run(panel: dashboard.Panel, stage: Stage) -> None:
    """Every expression runs, and gives a number at some time."""
    for query in panel.queries:
        found = stage.prometheus.series(query.expr, stage.begin, stage.end)
        values = [float(value) for series in found for _, value in series["values"]]
        assert any(math.isfinite(value) for value in values), query.expr


def test_picture_shows_every_panel(
    stage: Stage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With ``--record`` it goes into the documentation."""
    path = PICTURE if request.config.getoption("--record") else tmp_path / "metrics.png"
    assert picture.draw(stage, path) == len(dashboard.panels())
    assert path.stat().st_size > 20_000
