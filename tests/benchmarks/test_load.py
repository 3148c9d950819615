"""The load run: its figures are right, and it sees what must not happen."""

from __future__ import annotations

import asyncio
import copy
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks.load.__main__ as load_main
from benchmarks.frame.processes import family_cpu_seconds
from benchmarks.frame.table import marks, put_into
from benchmarks.frame.targets import judged
from benchmarks.load.__main__ import PAGE, _options
from benchmarks.load.buyers import NO_ANSWER, Answer, Crowd
from benchmarks.load.measure import oversold, summary
from benchmarks.load.plan import CELLS, LONG, ON, QUICK, RUSH, TITLES
from benchmarks.load.quiet import Reading, Span, Watch, noise, sentence
from benchmarks.load.report import TARGETS, broken, markdown
from benchmarks.load.rounds import compared, together
from benchmarks.load.shelf import Shelf
from benchmarks.load.shop.names import POSTGRESQL, REFUSED, SOLD, SOLD_OUT, SQLITE, UNPAID
from tests.tools import ROOT, eventually

BEGIN, END = marks("load")


def answer(buyer: int, began: float, ended: float, status: int = SOLD) -> Answer:
    """Return what a buyer was answered."""
    return Answer(buyer, status, began, ended)


def test_a_wait_that_outlasts_the_sale_counts() -> None:
    """A buyer who is served after the end has the longest wait, and is not in the rate."""
    answers = [answer(0, 10.0, 10.1), answer(0, 10.1, 10.2), answer(1, 9.5, 25.0)]
    found = summary(answers, start=10.0, end=12.0, buyers=2)
    assert found["longest"] == pytest.approx(15.5)
    assert found["orders_per_second"] == pytest.approx(1.0)


def test_what_was_answered_before_the_start_is_not_timed() -> None:
    """The lead is left out of waits and rate, but not of who got how much."""
    answers = [answer(0, 1.0, 9.0), answer(0, 10.0, 10.5), answer(1, 10.0, 10.25)]
    found = summary(answers, start=10.0, end=11.0, buyers=3)
    assert found["longest"] == pytest.approx(0.5)
    assert found["orders_per_second"] == pytest.approx(2.0)
    assert (found["least_served"], found["most_served"]) == (0, 2)


def test_every_answer_but_sold_is_an_error() -> None:
    """There is stock for all: sold out, refused, failed and not answered are no orders."""
    statuses = (SOLD, SOLD_OUT, UNPAID, REFUSED, 500, NO_ANSWER)
    found = summary([answer(0, 10, 10.5, each) for each in statuses], 10, 11, buyers=1)
    assert found["errors"] == 5
    assert found["most_served"] == 1


def test_a_sale_that_served_nobody_has_no_waits() -> None:
    """There is a figure for everything else all the same."""
    found = summary([answer(0, 10, 70, REFUSED)], 10, 11, buyers=1)
    assert math.isnan(found["p99"])
    assert found["orders_per_second"] == 0


@pytest.mark.parametrize(
    ("orders", "stock", "left", "too_many"), [(50, 50, 0, 0), (100, 50, 0, 50), (10, 50, 47, 7)]
)
def test_an_order_without_a_unit_is_oversold(
    orders: int, stock: int, left: int, too_many: int
) -> None:
    """Lost updates count as well as what was sold beyond the stock."""
    assert oversold(orders, stock, left) == too_many


async def _serve(statuses: list[int]) -> Crowd:
    """Let one buyer ask a server that answers with these, and then hangs up."""

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in statuses:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 4\r\n\r\nabcd".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    async with server, Crowd(server.sockets[0].getsockname()[1], 1) as crowd:
        await crowd.buy_until(time.monotonic() + 60, ["/"])
    return crowd


def test_a_buyer_asks_again_until_nobody_answers() -> None:
    """Each answer is kept with its status; a connection that was closed is one without."""
    crowd = asyncio.run(_serve([201, 410, 201]))
    assert [each.status for each in crowd.answers] == [201, 410, 201, NO_ANSWER]
    ends = [each.ended for each in crowd.answers]
    assert ends == sorted(ends)
    assert all(each.seconds >= 0 for each in crowd.answers)


def test_the_shelf_counts_its_own_products_alone(tmp_path: Path) -> None:
    """What another guard sold is not counted, nor a void order; a unit may be a row."""
    shelf = Shelf.in_sqlite(tmp_path / "shop.sqlite3")
    try:
        shelf._connection.executescript(
            "CREATE TABLE shop_product (id INTEGER PRIMARY KEY, stock INTEGER, fence INTEGER);"
            "CREATE TABLE shop_unit (id INTEGER PRIMARY KEY, product_id INTEGER, sold BOOLEAN);"
            "CREATE TABLE shop_order (id INTEGER PRIMARY KEY, product_id INTEGER, void BOOLEAN);"
        )
        before, (one, two) = shelf.put(1, 7), shelf.put(2, 100)
        rows = [(before[0], False), (one, False), (one, False), (two, False), (two, True)]
        sql = "INSERT INTO shop_order (product_id, void) VALUES (?, ?)"
        shelf._connection.executemany(sql, rows)
        assert shelf.orders([one, two]) == 3
        assert shelf.left([one, two]) == 200
        sql = "INSERT INTO shop_unit (product_id, sold) VALUES (?, ?)"
        shelf._connection.executemany(sql, rows)
        assert shelf.left([one, two]) == 203
    finally:
        shelf.close()


def row(**figures: Any) -> dict[str, Any]:
    """Return the figures of a sale, such as ``sale`` gives."""
    return {
        "orders_per_second": 100.0,
        "p50": 0.1,
        "p99": 0.2,
        "longest": 0.3,
        "least_served": 2,
        "most_served": 4,
        "errors": 0,
        "oversold": 0,
        "commands_per_order": 2.0,
        "requests_per_order": 2.0,
        "processor_ms_per_order": 3.0,
        "seconds": 2.0,
        **figures,
    }


def test_ratios_are_taken_within_a_round_and_nothing_bad_is_averaged_away() -> None:
    """A fault of one round is in the table, and so is its longest wait."""
    found = compared(
        {
            "ours": [row(orders_per_second=300.0, oversold=2), row(longest=9.0, errors=1)],
            "redis-py": [row(), row(orders_per_second=50.0)],
        }
    )["ours"]
    assert (found["speed"]["min"], found["speed"]["max"]) == (2.0, 3.0)
    assert (found["oversold"], found["errors"], found["longest"]["max"]) == (2, 1, 9.0)


def test_each_figure_has_its_median_and_range() -> None:
    """And what every round measured is kept."""
    rows = [row(orders_per_second=rate) for rate in (120.0, 90.0, 100.0)]
    found = compared({"ours": rows, "redis-py": rows})["ours"]
    assert found["orders_per_second"] == {"min": 90.0, "median": 100.0, "max": 120.0}
    assert found["rounds"] == rows


def test_there_is_no_ratio_to_a_peer_that_served_nobody() -> None:
    """A division by nothing is no figure."""
    found = compared({"ours": [row()], "redis-py": [row(orders_per_second=0.0, p99=math.nan)]})
    assert found["ours"]["speed"] is None
    assert found["ours"]["p99_ratio"] is None
    found = compared({"ours": [row(p99=math.nan)], "redis-py": [row()]})
    assert found["ours"]["p99_ratio"] is None


def good() -> dict[str, Any]:
    """Return the results of a run in which all went well."""
    rounds = {slug: [row()] for slug in TITLES}
    rounds["none"] = [row(oversold=5)]
    rounds["ours"] = [row(orders_per_second=200.0, p99=0.01)]
    one = compared(rounds)
    sold = {
        "orders": 50,
        "oversold": 0,
        "unsold": 0,
        "paid_for_nothing": 0,
        "sold_within": 0.5,
        "told_sold_out": math.nan,
        "errors": 0,
    }
    rush = {slug: together([sold, sold]) for slug in TITLES}
    rush["none"] = {**rush["none"], "oversold": 50}
    waited = {
        "buyers": 1000,
        "processes": 2,
        "redis_connections": 17,
        "redis_listening": 2,
        "listening_per_process": 1.0,
        "database_connections": 0,
        "commands_per_second": 0.5,
        "drained_per_second": 100.0,
        "oversold": 0,
        "errors": 0,
    }
    looked = {"bystander_p50": 0.1, "bystander_p99": 0.2, "bystander_longest": 0.3}
    results = {
        "quick": False,
        "rounds": 2,
        "sales": {POSTGRESQL: {"one": one, "few": copy.deepcopy(one)}},
        "rush": {POSTGRESQL: rush, SQLITE: {slug: dict(rush[slug]) for slug in ON[SQLITE]}},
        "waiting": {"1000": {"ours": together([waited])}},
        "bystanders": {"ours": together([{**row(), **looked}])},
    }
    return copy.deepcopy(results)


def test_a_good_run_breaks_nothing_and_meets_its_targets() -> None:
    """Only the unguarded shop has oversold."""
    results = good()
    assert list(broken(results)) == []
    verdicts = list(judged(results, TARGETS))
    assert len(verdicts) == 7
    assert all(verdict["met"] for verdict in verdicts)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sales", POSTGRESQL, "one", "redis-py", "oversold"), 1),
        (("sales", POSTGRESQL, "one", "ours", "errors"), 1),
        (("rush", SQLITE, "ours-fenced", "oversold"), 1),
        (("rush", SQLITE, "none", "oversold"), 0),
        (("rush", SQLITE, "counter", "unsold"), 1),
        (("rush", POSTGRESQL, "units", "errors"), 1),
        (("waiting", "1000", "ours", "errors"), 1),
        (("bystanders", "ours", "oversold"), -1),
    ],
    ids=lambda part: ".".join(part[:1] + part[-2:]) if isinstance(part, tuple) else "",
)
def test_what_must_not_happen_is_seen_wherever_it_happens(
    path: tuple[str, ...], value: int
) -> None:
    """Each place of the results is looked at."""
    results = good()
    at = results
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert len(list(broken(results))) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sales", POSTGRESQL, "one", "ours", "speed"), {"median": 1.29}),
        (("sales", POSTGRESQL, "one", "ours", "p99_ratio"), {"median": 0.11}),
        (("waiting", "1000", "ours", "listening_per_process"), {"max": 1.5}),
        (("waiting", "1000", "ours", "database_connections"), {"max": 1}),
        (("waiting", "1000", "ours", "redis_connections"), {"max": 19}),
    ],
    ids=lambda part: part[-1] if isinstance(part, tuple) else "",
)
def test_a_missed_target_is_reported(path: tuple[str, ...], value: Any) -> None:
    """A figure just beyond its bound is not met."""
    results = good()
    at = results
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert [verdict["met"] for verdict in judged(results, TARGETS)].count(False) == 1


ENVIRONMENT = {
    "date": "2026-01-02T03:04:05",
    "python": "CPython",
    "server": "valkey",
    "protocol": "RESP3",
    "system": "Linux",
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite 3",
    "cpus": 2,
    "processor": "",
    "load_at_start": 0.1,
    "packages": {},
}
IDLE = {"others": 0.01, "stolen": 0.0, "most_others": 0.03, "most_stolen": 0.004}
QUIET = {"load_before": 0.1, "load_after": 9.0, "cpus": 2, "before": IDLE, "during": IDLE}


def test_the_page_shows_every_guard_and_each_fault() -> None:
    """What was oversold is in bold."""
    results = good()
    results["targets"] = list(judged(results, TARGETS))
    results["environment"] = ENVIRONMENT
    results["machine"] = QUIET
    page = markdown(results)
    assert all(f"| {title} " in page for title in TITLES.values())
    assert "| **5** " in page
    assert "The machine was quiet." in page
    assert "Medians of 2 rounds" in page


def test_the_documentation_has_a_place_for_the_tables(tmp_path: Path) -> None:
    """The tables go between the two marks, and what stands around them stays."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    put_into(page, "load", "the tables\n")
    before, between = page.read_text().split(BEGIN)
    assert between.split(END)[0] == "\n\nthe tables\n\n"
    assert PAGE.read_text().startswith(before)
    page.write_text("no marks")
    with pytest.raises(ValueError, match="between"):
        put_into(page, "load", "the tables")


@pytest.mark.parametrize(
    ("arguments", "load", "why"),
    [
        (["--docs", "--quick"], 0.0, "--docs needs the long form, 3 rounds or more"),
        (["--docs", "--rounds", "2"], 0.0, "--docs needs the long form, 3 rounds or more"),
        (["--docs"], 16.86, "its load before the run was 16.86"),
        (["--rounds", "0"], 0.0, "--rounds 0: at least 1"),
    ],
)
def test_the_documentation_takes_no_rough_figures(
    arguments: list[str],
    load: float,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One round, or a machine that is busy with something else, is no figure for the page."""
    monkeypatch.setattr("sys.argv", ["benchmarks.load", *arguments])
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("benchmarks.load.quiet.PROBE", 0.05)
    with pytest.raises(SystemExit):
        _options(Watch())
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("used", "status"), [(0.01, 0), (0.5, 1)])
def test_only_a_machine_that_stayed_quiet_gets_into_the_documentation(
    used: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Figures of a busy one are kept beside it, and the run says why."""
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    machine = {**QUIET, "during": {**IDLE, "others": used}}
    measured = {**good(), "environment": ENVIRONMENT, "machine": machine, "seconds": 9}
    run = SimpleNamespace(missing=[], note=lambda: "")
    load = SimpleNamespace(measure=lambda: None, results=measured, run=run)
    monkeypatch.setattr("benchmarks.load.quiet.PROBE", 0.05)
    monkeypatch.setattr(load_main, "Load", lambda *_: load)
    monkeypatch.setattr(load_main, "draw", lambda *_: None)
    monkeypatch.setattr(load_main, "PAGE", page)
    monkeypatch.setattr(load_main, "noise", lambda found: noise(found) if found is machine else [])
    monkeypatch.setattr("sys.argv", ["benchmarks.load", "--docs", "--output", str(tmp_path)])
    assert load_main.main() == status
    assert ("The machine was" in page.read_text()) is (status == 0)
    assert ("other processes used 50.0% during" in capsys.readouterr().err) is (status == 1)
    assert (tmp_path / "load.json").exists()


@pytest.mark.parametrize(
    ("part", "share", "why"),
    [
        ("before", {"others": 0.06}, "other processes used 6.0% before the run"),
        ("during", {"others": 0.5}, "other processes used 50.0% during the run"),
        ("during", {"stolen": 0.03}, "3.0% was stolen during the run"),
    ],
)
def test_a_busy_machine_is_called_busy(part: str, share: dict[str, float], why: str) -> None:
    """Before the run as during it; and a quiet one is called quiet."""
    assert noise(QUIET) == []
    assert sentence(QUIET).startswith("The machine was quiet. Its load was 0.1 before the run,")
    found = {**QUIET, part: {**IDLE, **share}}
    assert noise(found) == [why]
    assert sentence(found).startswith(f"The machine was **not quiet: {why}**.")


def test_what_the_run_itself_uses_is_not_counted_as_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 8 busy seconds 6 were its own, on 2 processors for 10 seconds."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    start = Reading(at=100.0, busy=1000.0, stolen=5.0, own=50.0)
    end = Reading(at=110.0, busy=1008.0, stolen=6.0, own=56.0)
    assert Span.between(start, end) == Span(all=20.0, others=2.0, stolen=1.0)


def test_the_time_of_child_processes_is_the_run_s_own() -> None:
    """While they run and after they have ended."""
    before = family_cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        eventually(lambda: family_cpu_seconds() > before + 0.1)
    finally:
        child.kill()
        child.wait()
    assert family_cpu_seconds() > before + 0.1


def test_the_guards_of_the_tables_are_those_of_the_shop() -> None:
    """Nothing is planned for a guard that the shop does not have, or on the wrong database."""
    folder = ROOT / "benchmarks/load/shop/guards"
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert all(f'= "{slug}"' in source for slug in TITLES)
    for plan in (LONG, QUICK):
        for slugs in (*plan.waiting.values(), plan.bystanders):
            assert set(slugs) <= set(ON[POSTGRESQL])
        for database in plan.sales:
            for slugs in plan.cells(database).values():
                assert set(slugs) <= set(ON[database])


def test_the_long_form_measures_every_guard_three_times_in_half_an_hour() -> None:
    """The parts of the plan fit, as ``--help`` promises."""
    assert LONG.rounds == 3
    assert sum(seconds for _, seconds, *_ in LONG.parts()) <= 30 * 60
    sold = {slug for slugs in LONG.cells(POSTGRESQL).values() for slug in slugs}
    assert sold == set(TITLES)
    assert set(LONG.cells(POSTGRESQL)) == {*CELLS, RUSH}
    assert {"units", "counter", "advisory"} <= set(LONG.waiting[100]) & set(LONG.bystanders)


def test_the_quick_form_takes_a_minute_and_a_half() -> None:
    """It has a rush with each guard on both databases."""
    assert sum(seconds for _, seconds, *_ in QUICK.parts()) <= 90
    assert {"units", "counter", "advisory"} <= set(QUICK.cells(POSTGRESQL)[RUSH])
    assert "counter" in QUICK.cells(SQLITE)[RUSH]
