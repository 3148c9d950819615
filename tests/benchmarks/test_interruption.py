"""An interrupted run keeps what it has measured, and names what is missing."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks.__main__ as bench_main
import benchmarks.celery_guards.__main__ as guards_main
import benchmarks.load.run as load_run
from benchmarks.bench import Bench, Scenario
from benchmarks.celery_guards.scenarios import SCENARIOS
from benchmarks.celery_guards.table import cell
from benchmarks.frame.figures import count_spread, spread
from benchmarks.frame.run import INTERRUPTED, Run
from benchmarks.frame.table import Column
from benchmarks.load.plan import QUICK
from benchmarks.load.quiet import Watch
from benchmarks.load.shop.names import POSTGRESQL
from tests.tools import eventually

FOLDER = "INTERRUPTION_FOLDER"


def measure(bench: Bench, interrupted: bool) -> None:
    """Measure three rounds; interrupt the last one half-way."""

    def once(slug: str, turn: int) -> float:
        if interrupted and turn == 2 and slug == "redis-py":
            signal.raise_signal(signal.SIGTERM)
        return float(turn)

    for slug, values in bench.rounds(3, ["ours", "redis-py"], once).items():
        bench.rows[slug] = {"rate": spread(values), "rounds": values}


def scenario(name: str, interrupted: bool = False) -> Scenario:
    """Return a scenario that takes no time."""
    return Scenario(
        name=name,
        title=f"The {name} scenario",
        how="",
        measure=partial(measure, interrupted=interrupted),
        seconds=lambda _sizes: 1,
        columns=(Column("rate", "rate", count_spread),),
        charts=(),
    )


def test_the_benchmark_keeps_complete_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unfinished round is dropped, and no further scenario runs."""
    scenarios = (scenario("first"), scenario("second", interrupted=True), scenario("third"))
    monkeypatch.setattr(bench_main, "SCENARIOS", scenarios)
    monkeypatch.setattr(bench_main, "draw", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick", "--output", str(tmp_path)])
    before = signal.getsignal(signal.SIGTERM)
    assert bench_main.main() == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before
    found = json.loads((tmp_path / "latest.json").read_text())
    assert found["missing"] == ["The second scenario: 1 of 3 rounds", "The third scenario"]
    rows = {name: result["rows"]["ours"]["rounds"] for name, result in found["scenarios"].items()}
    assert rows == {"first": [0, 1, 2], "second": [0, 1]}
    page = (tmp_path / "latest.md").read_text()
    assert "**Interrupted. Not measured: The second scenario: 1 of 3 rounds; The third" in page
    assert page.strip() == capsys.readouterr().out.strip()


def test_the_first_round_is_all_or_nothing() -> None:
    """There is no row without a complete round."""
    run = Run({"only": 1.0})

    def once(item: str, turn: int) -> int:
        if item == "b":
            raise KeyboardInterrupt
        return turn

    assert run.part("only", lambda: run.rounds(2, ["a", "b"], once)) is None
    assert run.missing == ["only"]


def test_a_signal_between_two_parts_ends_the_run() -> None:
    """It raises nothing where there is no part to leave."""
    run = Run({"first": 1.0, "second": 1.0})
    with run.interruptible(signal.SIGTERM):
        assert run.part("first", lambda: 1) == 1
        signal.raise_signal(signal.SIGTERM)
        assert run.part("second", lambda: 2) is None
    assert run.missing == ["second"]


def test_no_round_begins_that_would_end_too_late() -> None:
    """The rounds so far are the result, and nothing counts as interrupted."""
    run = Run({"only": 1.0})
    found = run.part("only", lambda: run.rounds(3, ["a"], lambda _item, turn: turn, seconds=0))
    assert found == {"a": [0]}
    assert not run.missing


def test_the_load_run_keeps_its_sales(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three rounds is interrupted."""
    sales = 0

    @contextmanager
    def staged(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace()

    def sale(*_: object) -> dict[str, float]:
        nonlocal sales
        sales += 1
        if sales == 3 * len(QUICK.guards(POSTGRESQL)):  # the first time untimed
            signal.raise_signal(signal.SIGTERM)
        keys = ("orders_per_second", "p99", "longest", "least_served", "most_served")
        return {**dict.fromkeys(keys, 1.0), "oversold": 0, "errors": 0}

    monkeypatch.setattr(load_run, "staged", staged)
    monkeypatch.setattr(load_run, "_described", lambda _stage: {})
    monkeypatch.setattr(load_run.measure, "sale", sale)
    monkeypatch.setattr(load_run.measure, "rush", lambda *_: {"orders": 50, "oversold": 0})
    load = load_run.Load(replace(QUICK, rounds=3), Watch())
    load.measure()
    assert len(load.results["sales"][POSTGRESQL]["one"]["ours"]["rounds"]) == 1
    assert len(load.results["rush"][POSTGRESQL]["counter"]["rounds"]) == 1
    assert load.run.missing[0] == "PostgreSQL: sales and rushes: 2 of 3 rounds"
    assert len(load.run.missing) == len(list(QUICK.parts()))


class SlowPlayer:
    """Plays one scenario; interrupts the comparison when all players are in the next one."""

    def __init__(self, slug: str) -> None:
        self.slug = slug

    def play(self, names: list[str]) -> dict[str, Any]:
        run = Run(dict.fromkeys(names, 1.0))
        seen = {}
        with run.interruptible(signal.SIGTERM, then=signal.SIG_IGN):
            seen[names[0]] = run.part(names[0], lambda: {"lost": 1, "of": 1})
            run.part(names[1], self._hang)
        missing = [f"{self.slug}: {name}" for name in run.missing]
        return {"server": "valkey 9", "scenarios": seen, "missing": missing}

    def _hang(self) -> None:
        folder = Path(os.environ[FOLDER])
        (folder / self.slug).touch()
        if self.slug == "ours":
            eventually(lambda: len(list(folder.iterdir())) == len(guards_main.GUARDS))
            os.kill(os.getppid(), signal.SIGTERM)
        while True:
            threading.Event().wait(0.05)


def test_the_comparison_keeps_what_each_guard_has_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guard's process is told to end, and hands over its result so far."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(guards_main, "Player", SlowPlayer)
    chosen = list(SCENARIOS[:2])
    guards = guards_main.play(Run({guards_main.PART: 1.0}), chosen)
    for slug, guard in guards.items():
        assert guard["missing"] == [f"{slug}: {chosen[1].name}"]
        assert cell(guard["scenarios"][chosen[0].name]) == "**task lost**"
        assert cell(guard["scenarios"].get(chosen[1].name, {})) == "not measured"
