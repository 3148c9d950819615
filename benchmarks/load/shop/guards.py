"""The guards that are compared. Orders differ in nothing else."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django_redis import get_redis_connection
from redis import Redis
from redis.exceptions import LockError as RedisPyLockError

from benchmarks.load.shop.models import Product
from django_redis_lock import lock
from django_redis_lock.exceptions import LockNotAcquired

LEASE = 60
"""Seconds. python-redis-lock does not wait longer than its lease."""
WAIT = 60
"""The longest wait of a buyer in seconds."""


class RefusedError(Exception):
    """The wait ran out."""


class NoGuard:
    """No guard: read the stock and write it later, as with Django's ``save()``."""

    slug: ClassVar[str] = "none"

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        """Return the context from before the first read until after the last commit."""
        return nullcontext()

    def read(self, product_id: int) -> Product:
        return Product.objects.get(pk=product_id)

    def write(self, product: Product, _held: Any) -> bool:
        """Take one unit from the stock; return False if there is none left after all."""
        product.stock -= 1
        product.save(update_fields=["stock"])
        return True


class RowLock(NoGuard):
    """``select_for_update()``: the row is locked from the read to the commit."""

    slug = "row"

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        return transaction.atomic()

    def read(self, product_id: int) -> Product:
        return Product.objects.select_for_update().get(pk=product_id)


class ConditionalUpdate(NoGuard):
    """``UPDATE ... SET stock = stock - 1 WHERE stock >= 1``: the write itself decides."""

    slug = "update"

    def write(self, product: Product, _held: Any) -> bool:
        in_stock = Product.objects.filter(pk=product.pk, stock__gte=1)
        return in_stock.update(stock=F("stock") - 1) == 1


class RedisPy(NoGuard):
    """``Lock`` of redis-py with its defaults: an attempt every 0.1 s."""

    slug = "redis-py"
    sleep: ClassVar[float] = 0.1

    @cached_property
    def client(self) -> Redis:
        """A client with a pool like that of our locks."""
        client: Redis = get_redis_connection("peers")
        return client

    @contextmanager
    def around(self, product_id: int) -> Iterator[None]:
        held = self.client.lock(
            f"{self.slug}:{product_id}", timeout=LEASE, blocking_timeout=WAIT, sleep=self.sleep
        )
        if not held.acquire():
            raise RefusedError
        try:
            yield
        finally:
            held.release()


class RedisPyEager(RedisPy):
    """The same with an attempt every 0.01 s."""

    slug = "redis-py-eager"
    sleep = 0.01


class PythonRedisLock(NoGuard):
    """``Lock`` of python-redis-lock: each waiter blocks on a list, over its own connection."""

    slug = "python-redis-lock"

    @cached_property
    def client(self) -> Redis:
        """A client without a limit: each waiter keeps a connection, so a limit would deadlock."""
        return Redis.from_url(settings.PEERS_URL, max_connections=4096, socket_timeout=90)

    @contextmanager
    def around(self, product_id: int) -> Iterator[None]:
        import redis_lock

        held = redis_lock.Lock(self.client, f"{self.slug}:{product_id}", expire=LEASE)
        if not held.acquire(timeout=WAIT):
            raise RefusedError
        try:
            yield
        finally:
            held.release()


class Ours(NoGuard):
    """``lock(name, timeout=…, blocking_timeout=…)``."""

    slug = "ours"

    def around(self, product_id: int) -> AbstractContextManager[Any]:
        return lock(f"product:{product_id}", timeout=LEASE, blocking_timeout=WAIT)


class OursFenced(Ours):
    """The same, and the row rejects a write with an older fence than the last one."""

    slug = "ours-fenced"

    def write(self, product: Product, held: Any) -> bool:
        product.stock -= 1
        product.fenced(held).save(update_fields=["stock"])
        return True


REFUSALS = (RefusedError, LockNotAcquired, RedisPyLockError)

GUARDS: dict[str, NoGuard] = {
    kind.slug: kind()
    for kind in (
        NoGuard,
        RowLock,
        ConditionalUpdate,
        RedisPy,
        RedisPyEager,
        PythonRedisLock,
        Ours,
        OursFenced,
    )
}
