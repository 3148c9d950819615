"""The load run: its figures are right, and it sees what must not happen."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frame.table import marks, put_into
from benchmarks.frame.targets import judged
from benchmarks.load.__main__ import PAGE, _options, compared
from benchmarks.load.buyers import NO_ANSWER, Answer, Crowd
from benchmarks.load.measure import oversold, summary
from benchmarks.load.plan import LONG, ON, QUICK, TITLES
from benchmarks.load.report import TARGETS, broken, markdown
from benchmarks.load.shelf import Shelf
from benchmarks.load.shop.names import POSTGRESQL, REFUSED, SOLD, SOLD_OUT, SQLITE, UNPAID
from tests.tools import ROOT

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


def test_what_is_no_proper_answer_is_an_error() -> None:
    """Sold out is an answer; refused, failed and not answered are errors, and not orders."""
    statuses = (SOLD, SOLD_OUT, UNPAID, REFUSED, 500, NO_ANSWER)
    found = summary([answer(0, 10, 10.5, each) for each in statuses], 10, 11, buyers=1)
    assert found["errors"] == 3
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
    """What another guard sold before is not counted."""
    shelf = Shelf.in_sqlite(tmp_path / "shop.sqlite3")
    try:
        shelf._connection.executescript(
            "CREATE TABLE shop_product (id INTEGER PRIMARY KEY, stock INTEGER, fence INTEGER);"
            "CREATE TABLE shop_order (id INTEGER PRIMARY KEY, product_id INTEGER);"
        )
        before, (one, two) = shelf.put(1, 7), shelf.put(2, 100)
        rows = [(before[0],), (one,), (one,), (two,)]
        shelf._connection.executemany("INSERT INTO shop_order (product_id) VALUES (?)", rows)
        assert shelf.orders([one, two]) == 3
        assert shelf.left([one, two]) == 200
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
    assert (found["oversold"], found["errors"], found["longest"]) == (2, 1, 9.0)


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
    rush = {
        slug: {"orders": 50, "oversold": 0, "paid_for_nothing": 0, "errors": 0} for slug in TITLES
    }
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
        "sales": {POSTGRESQL: {"one": one, "few": copy.deepcopy(one)}},
        "rush": {POSTGRESQL: rush, SQLITE: {slug: dict(rush[slug]) for slug in ON[SQLITE]}},
        "waiting": {POSTGRESQL: {"1000": {"ours": waited}}},
        "bystanders": {"ours": {**row(), **looked}},
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
        (("waiting", POSTGRESQL, "1000", "ours", "errors"), 1),
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
        (("waiting", POSTGRESQL, "1000", "ours", "listening_per_process"), 1.5),
        (("waiting", POSTGRESQL, "1000", "ours", "database_connections"), 1),
        (("waiting", POSTGRESQL, "1000", "ours", "redis_connections"), 19),
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


def test_the_page_shows_every_guard_and_each_fault() -> None:
    """What was oversold is in bold."""
    results = good()
    results["targets"] = list(judged(results, TARGETS))
    results["environment"] = {
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
    page = markdown(results)
    assert all(f"| {title} " in page for title in TITLES.values())
    assert "| **5** " in page


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
        (["--docs", "--quick"], 0.0, "leave out --quick"),
        (["--docs", "--rounds", "1"], 0.0, "leave out --quick and --rounds"),
        (["--docs"], 16.86, "its load is 16.86"),
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
    with pytest.raises(SystemExit):
        _options()
    assert why in capsys.readouterr().err


def test_the_guards_of_the_tables_are_those_of_the_shop() -> None:
    """Nothing is planned for a guard that the shop does not have, or on the wrong database."""
    source = (ROOT / "benchmarks/load/shop/guards.py").read_text()
    assert all(f'= "{slug}"' in source for slug in TITLES)
    for plan in (LONG, QUICK):
        for database, _, guards in plan.waiting:
            assert set(guards) <= set(ON[database])


def test_the_long_form_takes_at_most_15_minutes() -> None:
    """The parts of the plan fit, as ``--help`` promises."""
    assert sum(seconds for _, seconds, *_ in LONG.parts()) <= 15 * 60
