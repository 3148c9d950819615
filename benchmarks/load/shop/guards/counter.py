"""A counter on the Redis server that reserves a unit before the payment.

The rules, which make sure that nothing is oversold and no unit is lost for ever:

- The database has the last word. The order and the stock are written in one transaction, and the
  stock never goes below 0, whatever the counter says.
- A reservation ends once. It becomes an order, or it is void; both are a row of the same table with
  the reservation in a unique column, so the database lets only the first of them in.
- A unit goes back to the counter only if its reservation can no longer become an order.
- Each step may be the last of its process. What is left behind is a reservation that runs out, and
  the next buyer who finds nothing free asks the database what became of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import IntegrityError
from django_redis import get_redis_connection
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.load.shop.errors import PaidForNothingError, RefusedError
from benchmarks.load.shop.guards.base import LEASE
from benchmarks.load.shop.guards.database import ConditionalUpdate
from benchmarks.load.shop.models import Order, Product

RESERVED, NONE_FREE = 1, 0
ATTEMPTS = 5
"""The first may find nothing counted, the next nothing free but what has run out."""


@dataclass
class Reservation:
    key: str
    name: str
    settling: bool = False
    """Whether it may have become an order, so that only the database knows."""


class Counter(ConditionalUpdate):
    """A counter, decremented by a script before the payment and settled in the database after."""

    slug = "counter"

    @cached_property
    def client(self) -> Redis:
        """A client with a pool like that of our locks."""
        client: Redis = get_redis_connection("peers")
        return client

    @cached_property
    def _scripts(self) -> tuple[Any, Any]:
        folder = Path(__file__).parent
        names = ("reserve.lua", "give_back.lua")
        reserve, give_back = (
            self.client.register_script((folder / name).read_text()) for name in names
        )
        return reserve, give_back

    @contextmanager
    def around(self, product_id: int) -> Iterator[Reservation | None]:
        held = self._reserve(product_id)
        try:
            yield held
        except BaseException:
            if held is not None and not held.settling:
                with suppress(RedisError):  # then it runs out
                    self._give_back(held.key, held.name)
            raise
        if held is not None:
            with suppress(RedisError):  # then it runs out; the order is safe
                self.client.hdel(held.key, held.name)

    def find(self, product_id: int, held: Reservation | None) -> Product | None:
        return None if held is None else Product(pk=product_id)  # no query: a unit is reserved

    def order(self, product_id: int, buyer: str, held: Reservation) -> Order:
        held.settling = True
        try:
            return Order.objects.create(product_id=product_id, buyer=buyer, reservation=held.name)
        except IntegrityError:
            raise PaidForNothingError from None  # the payment took longer than the reservation

    def take(self, found: Product, held: Reservation) -> bool:
        taken = super().take(found, held)
        if not taken:
            # The counter had more than the database: it is counted again.
            self.client.delete(held.key)
        return taken

    def _reserve(self, product_id: int) -> Reservation | None:
        """Reserve a unit; return None if there is none."""
        held = Reservation(f"units:{product_id}", uuid4().hex)
        for _ in range(ATTEMPTS):
            answer, *ran_out = self._scripts[0](keys=[held.key], args=[held.name, 1000 * LEASE])
            if answer == RESERVED:
                return held
            if answer == NONE_FREE and not ran_out:
                return None
            for name in ran_out:
                self._end(held.key, name.decode(), product_id)
            if answer != NONE_FREE:
                stock = Product.objects.values_list("stock", flat=True).get(pk=product_id)
                self.client.hsetnx(held.key, "free", stock)
        raise RefusedError

    def _end(self, key: str, name: str, product_id: int) -> None:
        """End a reservation that has run out: make it void, unless it has become an order."""
        order, _ = Order.objects.get_or_create(
            reservation=name, defaults={"product_id": product_id, "void": True}
        )
        if order.void:
            self._give_back(key, name)
        else:
            self.client.hdel(key, name)

    def _give_back(self, key: str, name: str) -> None:
        self._scripts[1](keys=[key], args=[name])
