"""A run shows each of its faults."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.chaos.history import Recorder, read
from tests.chaos.plan import Plan
from tests.chaos.stage import Stage


def test_a_run_goes_on_until_each_fault_was_played(tmp_path: Path) -> None:
    """Also when its time is over, and one of them found nothing to break at first."""
    tries: list[str] = []

    def common(stage: Stage) -> None:
        tries.append("common")

    def rare(stage: Stage) -> bool:
        tries.append("rare")
        return tries.count("rare") == 3

    heart: Any = SimpleNamespace(recorder=Recorder(tmp_path, 0))
    unused: Any = None
    stage = Stage(Plan(str(tmp_path), 1, {}), unused, unused, heart, unused)
    stage.play((common, rare), seconds=0)
    heart.recorder.close()
    played = [event["what"] for event in read(tmp_path)]
    assert set(played) == {"common", "rare"}
    assert tries.count("rare") == 3
