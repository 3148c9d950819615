"""Chaos: its table counts what broke, and its exit code tells."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos import layouts, table
from tests.chaos.row import COLUMNS, Row, judge
from tests.rig.faults import FAULTS
from tests.rig.histories import BREACHES, History, overlap
from tests.rig.report import WIDTH
from tests.rig.verdict import Violation
from tests.soak.storm import PLAYED
from tests.tools import ROOT

ALL_COLUMNS = (*COLUMNS, "other")
NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def past() -> History:
    """A history in which the fault was played, and a lock was taken."""
    past = History()
    past.driver("fault", 9.0, what="a fault")
    past.holds("4.1", 9.1, 9.2)
    return past


def row_of(past: History, unpromised: frozenset[str] = NOTHING) -> Row:
    unpromised_by = {"a fault": unpromised}
    layout = layouts.Layout("a layout", layouts.independent({}), (), unpromised=unpromised_by)
    return judge(layout, "a fault", past.events)


class TestRow:
    """What a history comes to."""

    def test_clean(self, past: History) -> None:
        row = row_of(past)
        assert (row.taken, row.times, row.violations) == (1, 1, [])
        assert not row.counts.total()

    @pytest.mark.parametrize(("breach", "column"), list(zip(BREACHES, ALL_COLUMNS, strict=True)))
    def test_a_breach_is_counted_in_its_column(
        self, past: History, breach: Callable[[History], None], column: str
    ) -> None:
        """It breaks a promise; what is not promised shows with a star."""
        breach(past)
        row, excused = row_of(past), row_of(past, frozenset({column}))
        assert row.counts[column] == excused.counts[column] > 0
        assert row.broken()[column] > 0
        assert not excused.broken()[column]
        assert f"{excused.counts[column]}*" in table.table([excused])

    def test_a_process_that_hangs_is_never_excused(self, past: History) -> None:
        past.driver("stuck", 31.0, worker=2)
        (violation,) = row_of(past, frozenset({"lost waiters"})).violations
        assert violation.rule == "stuck"

    def test_double_holds_after_a_loss_of_data_are_counted(self, past: History) -> None:
        """They break no promise, for ``remaining`` is void then."""
        past.takes("1.2", 10.1)
        past.is_ended("data lost", 10.2, 10.3)
        past.holds("2.1", 10.4, 11.0)
        row = row_of(past)
        assert row.counts["double holds"] == 1
        assert row.violations == []

    def test_a_run_that_shows_nothing_is_a_failure(self) -> None:
        (violation,) = row_of(History()).violations
        assert violation.rule == "nothing happened"

    def test_unavailability_is_what_a_caller_waited_for(self, past: History) -> None:
        """The longest time that a caller waited while no caller was served, of any lock."""
        past.requests("2.1", 20.0)
        past.holds("1.2", 20.2, 21.0)
        past.acquires("2.1", 23.5)
        assert row_of(past).unavailable == pytest.approx(2.5)


def test_broken_promises_fit_the_end_of_a_log() -> None:
    broken = [Violation("failed", "acquire raised:\n" + "line\n" * 50 + "KeyError")] * 40
    rows = [Row("a fault", "a layout", violations=broken)]
    lines = table.broken_promises(rows, "somewhere").splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("40 broken promises in 1 of 1 runs")
    assert "KeyError" in lines[1]
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("", 0, "kept"),
        ("broken", 1, "broken: "),
        ("raise RuntimeError('no server')", 1, "no server"),
    ],
)
def test_exit_code(
    program: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    past: History,
) -> None:
    """It is 1 if a promise was broken or a run failed, and that is said last."""
    if program == "broken":
        program = ""
        overlap(past)
    monkeypatch.setattr(chaos.Task, "command", lambda _: [sys.executable, "-c", program])
    monkeypatch.setattr(chaos, "read", lambda _: past.events)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert chaos.main(["--layout", "standalone", "--fault", "read only"]) == code
    out = capsys.readouterr().out
    assert said in (out if code == 0 else out.splitlines()[-1])
    assert list(tmp_path.iterdir()) == [] or code


def test_every_fault_is_played_and_explained() -> None:
    """The documentation has all those of the table."""
    used = {fault for layout in layouts.ALL for fault in layout.faults}
    assert used | set(PLAYED) == set(FAULTS)
    page = (ROOT / "docs/explanation/failures.md").read_text()
    assert [fault for fault in used if f"| {fault} |" not in page] == []
    assert [layout.name for layout in layouts.ALL if f"| `{layout.name}` |" not in page] == []
