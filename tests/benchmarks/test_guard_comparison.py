"""The comparison of guards: it counts overlaps correctly, and its table shows what was seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.celery_guards import diary as diaries
from benchmarks.celery_guards.__main__ import PAGE
from benchmarks.celery_guards.contenders import GUARDS
from benchmarks.celery_guards.diary import Diary
from benchmarks.celery_guards.plays import Seen
from benchmarks.celery_guards.scenarios import SCENARIOS
from benchmarks.celery_guards.stage import Left
from benchmarks.celery_guards.table import broken_promises, cell, faults, section
from benchmarks.celery_guards.tasks import KINDS
from benchmarks.frame.table import marks, put_into
from example_project.embedded import EmbeddedServer

SHOP = 7
BEGIN, END = marks("compare")


@pytest.fixture
def diary(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Diary]:
    """A diary on the session's server."""
    monkeypatch.setenv(diaries.PORT, str(server.port))
    found = Diary()
    yield found
    found.close()


def beside(diary: Diary) -> dict[str, int]:
    """Return how many were running when each run began, by label."""
    return {entry.label: entry.beside for entry in diary.entries(SHOP, "began")}


def test_a_run_that_begins_beside_another_is_seen(diary: Diary) -> None:
    """Only a run of the same shop that has not ended counts."""
    with diary.run(SHOP, "first", "1"):
        pass
    with diary.run(SHOP, "second", "2"), diary.run(SHOP, "third", "3"), diary.run(8, "other", "4"):
        pass
    assert beside(diary) == {"first": 0, "second": 0, "third": 1}
    assert diary.entries(8, "began")[0].beside == 0
    assert [entry.label for entry in diary.entries(SHOP, "ended")] == ["first", "third", "second"]


def test_a_run_of_a_dead_process_runs_no_more(diary: Diary) -> None:
    """A child that was killed can't write down its end."""
    program = (
        "import os, signal\n"
        "from benchmarks.celery_guards.diary import Diary\n"
        f"with Diary().run({SHOP}, 'killed', '1'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    assert diary.running(SHOP) == 0  # dead, though its parent has not collected it yet
    assert killed.wait() == -signal.SIGKILL
    assert diary.running(SHOP) == 0
    with diary.run(SHOP, "next", "2"):
        assert diary.running(SHOP) == 1
    assert beside(diary) == {"killed": 0, "next": 0}
    assert not diary.entries(SHOP, "ended", "killed")


def test_a_run_that_is_torn_away_has_not_ended(diary: Diary) -> None:
    """A task that fails half-way has not done its work."""
    with pytest.raises(KeyError), diary.run(SHOP, "first", "1"):
        raise KeyError
    assert not diary.entries(SHOP, "ended")
    assert [entry.label for entry in diary.entries(SHOP, "torn away")] == ["first"]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Seen(), "ok"),
        (Seen(lost=0, together=0, hung=False, left=Left(0.04, 5)), "ok; lock free within 0.1 s"),
        (Seen(left=Left(30.04, 45)), "ok; lock free after 30.0 s"),
        (Seen(lost=1), "**task lost**"),
        (Seen(lost=3, of=20), "**3 of 20 tasks lost**"),
        (Seen(left=Left(None, 5, 3594.7)), "**lock left, 3,595 s to go**"),
        (Seen(left=Left(None, 5)), "**lock left, no expiry**"),
        (Seen(together=1), "**two at once**"),
        (Seen(together=3, again=1.0), "**two at once, 3 times**"),
        (
            Seen(repeated=1, left=Left(0.04, 5)),
            "**done again after its success**; lock free within 0.1 s",
        ),
        (Seen(repeated=0), "ok"),
        (Seen(hung=True, note="why"), "**hangs**; why"),
        (Seen(lost=0, again=2.04), "ok; runs again after 2.0 s"),
    ],
)
def test_a_cell_says_what_was_seen(seen: Seen, said: str) -> None:
    """Faults come first and in bold."""
    assert cell(asdict(seen)) == said
    assert bool(faults(asdict(seen))) == ("**" in said)


def test_a_guard_that_can_not_run_has_its_error_in_each_row() -> None:
    """There is a column for each guard and a row for each scenario."""
    guards: dict[str, Any] = {
        "broken": {"title": "broken", "scenarios": {}, "error": "ImportError: no\nsix"},
        "fine": {"title": "fine", "scenarios": {each.name: asdict(Seen()) for each in SCENARIOS}},
    }
    text = section({"guards": guards, "versions": {"celery": "5.4"}}, SCENARIOS)
    assert text.startswith("With celery 5.4:")
    assert text.count("could not run: ImportError: no six") == len(SCENARIOS)
    assert f"0 of {len(SCENARIOS)}" in text


def test_only_what_is_promised_counts_as_broken() -> None:
    """No promise covers a lease that is never renewed."""
    lost = {each.name: asdict(Seen(lost=1)) for each in SCENARIOS}
    promised = [each for each in SCENARIOS if each.promised]
    broken = broken_promises({"scenarios": lost}, SCENARIOS)
    assert broken == [f"{each.title}: **task lost**" for each in promised]
    assert not broken_promises({"scenarios": {"killed": asdict(Seen(lost=0))}}, promised[:1])
    assert broken_promises({"scenarios": {}, "error": "gone"}, promised[:1])


def test_a_page_gets_its_table_between_the_marks(tmp_path: Path) -> None:
    """What stands around stays; a page without marks is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    put_into(page, "compare", "new")
    assert page.read_text() == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="needs the lines"):
        put_into(page, "compare", "new")
    assert page.read_text() == "nothing"


def test_the_page_has_each_scenario_and_each_guard() -> None:
    """After a change of the scenarios: ``make compare ARGS=--docs``."""
    text = PAGE.read_text().split(BEGIN, 1)[1].split(END, 1)[0]
    head, *rows = [line for line in text.splitlines() if line.startswith("|")]
    columns = [column.strip() for column in head.strip("|").split("|")]
    titles = [row.strip("|").split("|")[0].strip() for row in rows[1:-1]]
    assert columns[1:] == [guard.title for guard in GUARDS.values()]
    assert titles == [scenario.title for scenario in SCENARIOS]
    for scenario in SCENARIOS:
        assert f"- **{scenario.title}**: {scenario.how}" in text


def test_each_scenario_has_its_task() -> None:
    """A task that is missing would show as an option that a guard does not have."""
    assert {scenario.task for scenario in SCENARIOS} <= set(KINDS)
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
