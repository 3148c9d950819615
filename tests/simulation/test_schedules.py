"""Schedules are repeated exactly, and what once failed does not fail again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.layouts import LAYOUTS
from tests.simulation.product import simulated
from tests.simulation.schedules import KEPT, Chance, Regression, Replay, play, shrink

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


# The others are made of the same parts.
@pytest.mark.parametrize(
    "name",
    [name for name in LAYOUTS if name == "parked-queue" or "-" not in name or "redlock" in name],
)
def test_a_schedule_is_repeated_exactly(name: str) -> None:
    """By its seed, by its choices, and in another process with other hashes."""
    choices = Chance(17)
    told = play(LAYOUTS[name], choices, telling=True)
    assert not told.failure
    assert len(told.story) > 5
    for again in (Chance(17), Replay(choices.made)):
        assert play(LAYOUTS[name], again, telling=True).story == told.story
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.simulation", name, "--replay", "17"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert replayed.stdout.startswith("\n".join(told.story))


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_schedule_that_failed_once_does_not_fail_again(path: Path) -> None:
    regression = Regression.read(path)
    assert not regression.play().failure, regression.about


def test_a_broken_copy_is_found_and_its_schedule_is_recorded_again(tmp_path: Path) -> None:
    """Where the choices do not reach it any more."""
    kept = Regression.read(KEPT / "a-lease-that-is-being-shortened-counts-in-full.json")
    path = tmp_path / "kept.json"
    path.write_text(replace(kept, choices=kept.choices[:-1]).text())
    near = ("--broken", "a lease that is being shortened", "--vary", str(path))
    subprocess.run([sys.executable, "-m", "tests.simulation", *near], cwd=ROOT, check=True)
    again = Regression.read(path)
    assert again.about.startswith("BackedBelief")
    assert again.choices != kept.choices[:-1]


def test_each_broken_copy_can_be_made(tmp_path: Path) -> None:
    """The place that it changes is in the package, once; also of those for chaos."""
    of_chaos = mutants.read(ROOT / "tests" / "chaos" / "broken.toml")
    for number, mutant in enumerate([*mutants.read(), *of_chaos]):
        path = tmp_path / str(number) / mutants.PACKAGE / mutant.path
        path.parent.mkdir(parents=True)
        path.write_text((ROOT / mutants.PACKAGE / mutant.path).read_text())
        mutant.apply(tmp_path / str(number))


def test_shrinking() -> None:
    """What does not matter goes, and what does is made as small as it can be."""

    def fails(choices: list[int]) -> bool:
        return sum(choice >= 3 for choice in choices) >= 2

    assert shrink([0, 1, 9, 0, 2, 5, 7, 0, 1] * 5, fails) == [3, 3]
