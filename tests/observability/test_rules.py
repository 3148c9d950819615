"""The alert rules are valid, fire on what really happened, and are quiet before."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.observability import recording
from tests.observability.stage import RULES, Stage

KEPT = RULES.with_name("alerts_test.yml")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid() -> None:
    """All six are found."""
    assert "6 rules found" in promtool("check", "rules", RULES)


def test_rules_fire_on_the_series_that_are_kept() -> None:
    """They were recorded in a run of this shop."""
    assert "SUCCESS" in promtool("test", "rules", KEPT)


def test_rules_fire_on_the_series_of_this_run(
    stage: Stage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With ``--record`` these are kept from here on."""
    kept = request.config.getoption("--record")
    path = KEPT if kept else tmp_path / KEPT.name
    path.write_text(recording.of(stage, RULES.name if kept else str(RULES)))
    assert "SUCCESS" in promtool("test", "rules", path)


def test_rules_fire_in_prometheus_itself(stage: Stage) -> None:
    """Those that wait for a minute are pending after the incident; texts are rendered."""
    found = stage.prometheus.series("ALERTS", stage.begin, stage.end)
    states = {(each["metric"]["alertname"], each["metric"]["alertstate"]) for each in found}
    assert {("LocksLost", "firing"), ("LockRenewalLate", "firing")} <= states
    assert ("LockServerUnavailable", "pending") in states
    (group,) = stage.prometheus.ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    shown = {
        alert["labels"]["alertname"]: alert["annotations"]["summary"]
        for alert in stage.prometheus.ask("alerts")["alerts"]
    }
    assert shown["LocksLost"] == "Locks of the group product were lost while they were held."
