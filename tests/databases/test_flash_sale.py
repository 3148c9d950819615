"""Guards of the load run that need PostgreSQL, when a process dies or a buyer can't pay."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.load.shop.names import DECLINED, POSTGRESQL, SOLD, SOLD_OUT
from benchmarks.load.stage import Stage, staged
from tests.benchmarks.sale import on_sale
from tests.tools import Background, eventually


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A shop on PostgreSQL, with one process of the web server."""
    with staged(POSTGRESQL, processes=1, threads=4) as stage:
        yield stage


def paying(stage: Stage) -> bool:
    """Whether a buyer is between the lock of a unit and its commit."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"
    return bool(stage.shelf._connection.execute(sql).fetchall())


@pytest.mark.parametrize("guard", ["units", "advisory", "row", "counter"])
def test_a_declined_payment_leaves_the_unit_to_the_next(stage: Stage, guard: str) -> None:
    """And when it is sold, it is sold out."""
    with on_sale(stage, guard) as sale:
        assert [sale.buy("declined"), sale.buy(), sale.buy()] == [DECLINED, SOLD, SOLD_OUT]
        assert sale.orders == 1


def test_a_buyer_skips_the_unit_that_another_pays_for(stage: Stage) -> None:
    """The second buyer of two units does not wait; the third finds none free."""
    with on_sale(stage, "units", stock=2) as sale:
        stage.hold.touch()
        first = Background(lambda: sale.buy("held"))
        eventually(lambda: paying(stage))
        assert [sale.buy(), sale.buy()] == [SOLD, SOLD_OUT]
        stage.hold.unlink()
        assert first.outcome() == SOLD
        assert sale.orders == 2


def test_the_unit_of_a_killed_process_is_free_again(stage: Stage) -> None:
    """PostgreSQL rolls back the transaction of a client that is gone."""
    with on_sale(stage, "units") as sale:
        stage.hold.touch()
        buyer = Background(lambda: sale.buy("held"))
        eventually(lambda: paying(stage))
        assert sale.buy() == SOLD_OUT
        os.kill(stage.site.processes()[0], signal.SIGKILL)
        assert buyer.outcome() == 0
        stage.hold.unlink()
        eventually(stage.site.answers)
        assert eventually(lambda: sale.buy() == SOLD)
        assert sale.orders == 1
