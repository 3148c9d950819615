"""The counter that the load run compares: it oversells nothing and loses no unit for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.load.shop.names import DECLINED, SOLD, SOLD_OUT, SQLITE, UNPAID
from benchmarks.load.stage import Stage, staged
from tests.benchmarks.sale import LONG_AGO, Sale, on_sale
from tests.tools import ROOT, eventually


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A shop on SQLite, with one process of the web server."""
    with staged(SQLITE, processes=1, threads=4) as stage:
        yield stage


@pytest.fixture
def sale(stage: Stage) -> Iterator[Sale]:
    """A new product with one unit."""
    with on_sale(stage, "counter") as sale:
        yield sale


def test_it_sells_what_there_is_and_keeps_no_reservation(sale: Sale) -> None:
    """The second buyer of one unit is told before the payment that it is sold out."""
    assert [sale.buy(), sale.buy()] == [SOLD, SOLD_OUT]
    assert (sale.orders, sale.free, sale.reservations()) == (1, 0, [])


def test_a_declined_payment_gives_the_unit_back_at_once(sale: Sale) -> None:
    """The next buyer gets it."""
    assert [sale.buy("declined"), sale.buy()] == [DECLINED, SOLD]
    assert (sale.orders, sale.free, sale.reservations()) == (1, 0, [])


def test_the_unit_of_a_killed_process_comes_back_when_its_time_is_over(sale: Sale) -> None:
    """Until then it is reserved."""
    buyer, reservation = sale.begin()
    os.kill(sale.stage.site.processes()[0], signal.SIGKILL)
    assert buyer.outcome() == 0
    eventually(sale.stage.site.answers)
    assert sale.buy() == SOLD_OUT
    sale.run_out(reservation)
    assert sale.buy() == SOLD
    assert (sale.orders, sale.free, sale.reservations()) == (1, 0, [])


def test_a_payment_that_outlasts_its_reservation_is_returned(sale: Sale) -> None:
    """The unit went to the next buyer, and the database lets only one order in."""
    late, reservation = sale.begin()
    sale.run_out(reservation)
    assert sale.buy() == SOLD
    sale.stage.hold.unlink()
    assert late.outcome() == UNPAID
    assert sale.orders == 1


def test_a_reservation_that_ran_out_stays_void(sale: Sale) -> None:
    """Its unit is free again, and belongs to whoever reserves it next."""
    late, reservation = sale.begin()
    sale.run_out(reservation)
    assert sale.buy("declined") == DECLINED
    sale.stage.hold.unlink()
    assert late.outcome() == UNPAID
    assert (sale.orders, sale.free) == (0, 1)
    assert sale.buy() == SOLD


def test_a_late_payment_counts_as_long_as_nobody_wants_the_unit(sale: Sale) -> None:
    """A reservation ends only when another buyer asks for its unit."""
    late, reservation = sale.begin()
    sale.run_out(reservation)
    sale.stage.hold.unlink()
    assert late.outcome() == SOLD
    assert [sale.buy(), sale.orders, sale.free] == [SOLD_OUT, 1, 0]


def test_a_unit_that_was_sold_does_not_come_back(sale: Sale) -> None:
    """A process that dies between the commit and its last word leaves a reservation."""
    buyer, reservation = sale.begin()
    sale.stage.hold.unlink()
    assert buyer.outcome() == SOLD
    sale.server.hset(sale.key, reservation, LONG_AGO)
    assert sale.buy() == SOLD_OUT
    assert (sale.orders, sale.free, sale.reservations()) == (1, 0, [])


def test_a_server_without_its_memory_oversells_nothing(sale: Sale) -> None:
    """It promises a unit twice, and the database gives it to the first who has paid."""
    slow, _ = sale.begin()
    sale.server.flushdb()
    assert sale.buy() == SOLD
    sale.stage.hold.unlink()
    assert slow.outcome() == UNPAID
    assert [sale.buy(), sale.orders] == [SOLD_OUT, 1]


def test_a_counter_that_has_too_much_is_counted_again(sale: Sale) -> None:
    """A failover can leave an old number; one buyer pays for nothing, and no more."""
    assert sale.buy() == SOLD
    sale.server.hset(sale.key, "free", 20)
    assert [sale.buy(), sale.buy(), sale.buy()] == [UNPAID, SOLD_OUT, SOLD_OUT]
    assert sale.orders == 1


def test_a_reservation_that_is_sent_twice_takes_one_unit(sale: Sale) -> None:
    """A client sends a call again when the connection broke before its answer."""
    buyer, reservation = sale.begin()
    script = (ROOT / "benchmarks/load/shop/guards/reserve.lua").read_text()
    assert sale.server.eval(script, 1, sale.key, reservation, 60_000) == [1]
    assert (sale.free, sale.reservations()) == (0, [reservation])
    sale.stage.hold.unlink()
    assert buyer.outcome() == SOLD
