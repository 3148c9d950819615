"""A product on sale in the running shop of the load run, and those who buy it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from benchmarks.load.measure import oversold
from benchmarks.load.plan import UNITS
from benchmarks.load.stage import Stage
from tests.tools import Background, eventually

LONG_AGO = 1
"""When a reservation has run out that did so in 1970, in milliseconds."""


@dataclass
class Sale:
    """One product of the running shop, the counter of its units, and a buyer."""

    stage: Stage
    server: redis.Redis
    guard: str
    product: int
    stock: int

    @property
    def key(self) -> str:
        return f"units:{self.product}"

    @property
    def orders(self) -> int:
        """How many orders there are; none of them may be without a unit."""
        orders = self.stage.shelf.orders([self.product])
        assert oversold(orders, self.stock, self.stage.shelf.left([self.product])) == 0
        return orders

    @property
    def free(self) -> int:
        return int(self.server.hget(self.key, "free") or 0)

    def reservations(self) -> list[str]:
        return [str(name) for name in self.server.hkeys(self.key) if name != "free"]

    def buy(self, payment: str = "none") -> int:
        """Send an order; return the status of the answer, 0 if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.stage.site.port, timeout=30)
        try:
            path = f"/buy/{self.guard}/{self.product}/{payment}/"
            connection.request("POST", path, headers={"X-Buyer": "test"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def begin(self) -> tuple[Background, str]:
        """Let a buyer come whose payment hangs; return the buyer and the reservation."""
        self.stage.hold.touch()
        buyer = Background(lambda: self.buy("held"))
        return buyer, eventually(self.reservations)[0]

    def run_out(self, reservation: str) -> None:
        """Let the time of a reservation be over."""
        assert self.server.hset(self.key, reservation, LONG_AGO) == 0, "there is none"


@contextmanager
def on_sale(stage: Stage, guard: str, stock: int = 1) -> Iterator[Sale]:
    """Put a new product on the shelf."""
    port = stage.admin.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, db=2, decode_responses=True) as server:
        (product,) = stage.shelf.put(1, stock, in_rows=guard == UNITS)
        yield Sale(stage, server, guard, product, stock)
        stage.hold.unlink(missing_ok=True)
