"""The soak: a run that shows little does not pass."""

from __future__ import annotations

from tests.rig.verdict import Verdict
from tests.soak.__main__ import lacking
from tests.soak.storm import PLAYED


def test_run_that_shows_little() -> None:
    """A fault was left out, or hardly a lock was taken."""
    figures = {"acquisitions": 100.0, "pairs in queue compared": 1.0}
    assert lacking(Verdict(figures=figures, faults=dict.fromkeys(PLAYED, 1))) == []
    assert lacking(Verdict(figures=figures, faults=dict.fromkeys(PLAYED[1:], 1))) == [PLAYED[0]]
    figures = {"acquisitions": 99.0, "pairs in queue compared": 0.0}
    assert len(lacking(Verdict(figures=figures, faults=dict.fromkeys(PLAYED, 1)))) == 2
