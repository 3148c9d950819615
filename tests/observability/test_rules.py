"""The alert rules are valid and fire; rules and dashboard name only metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from prometheus_client import REGISTRY

from tests.tools.docs import DOCS

RULES = DOCS / "observability" / "alerts.yml"
DASHBOARD = DOCS / "observability" / "dashboard.json"


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid() -> None:
    assert "6 rules found" in promtool("check", "rules", RULES)


def test_rules_fire() -> None:
    """On series that were recorded in a run of the example shop, and not before the incident."""
    assert "SUCCESS" in promtool("test", "rules", RULES.with_name("alerts_test.yml"))


def test_rules_and_dashboard_name_only_metrics_that_exist() -> None:
    from django_redis_lock.contrib.prometheus import metrics  # noqa: F401 - registers them

    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    exist = {
        family.name + suffix
        for family in REGISTRY.collect()
        for suffix in suffixes.get(family.type, [""])
    }
    for path in (RULES, DASHBOARD):
        named = set(re.findall(r"\bdjango_redis_lock_\w+", path.read_text()))
        assert named
        assert named <= exist


def test_dashboard_can_be_imported() -> None:
    whole = json.loads(DASHBOARD.read_text())
    assert whole["id"] is None
    assert whole["templating"]["list"][0]["name"] == "datasource"
    ids = [each["id"] for each in whole["panels"]]
    assert len(ids) == len(set(ids))
