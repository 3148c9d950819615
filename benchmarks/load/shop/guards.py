"""The guards that are compared. A guard is all in which one order may differ from another."""

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
from benchmarks.load.shop.names import POSTGRESQL, SQLITE
from django_redis_lock import lock
from django_redis_lock.exceptions import LockNotAcquired

LEASE = 60
"""Seconds. python-redis-lock takes no wait that is longer than its lease."""
WAIT = 60
"""Seconds for which a buyer waits at most."""


class RefusedError(Exception):
    """The wait ran out."""


class Guard:
    """No guard: read the stock, and later write it, as Django's own ``save()`` does."""

    slug: ClassVar[str] = "none"
    ours: ClassVar[bool] = False
    guards: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    """Whether a buyer waits before reading the stock, so that nobody pays for nothing."""
    databases: ClassVar[tuple[str, ...]] = (POSTGRESQL, SQLITE)

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        """Return what is entered before the first read and left after the last commit."""
        return nullcontext()

    def read(self, product_id: int) -> Product:
        """Return the product."""
        return Product.objects.get(pk=product_id)

    def write(self, product: Product, _held: Any) -> bool:
        """Take one unit off the shelf; False when there was none left after all."""
        product.stock -= 1
        product.save(update_fields=["stock"])
        return True


class NoGuard(Guard):
    """The same, under its name."""

    guards = False
    waits = False


class RowLock(Guard):
    """``select_for_update()``: the row is locked from the read to the commit."""

    slug = "row"
    databases = (POSTGRESQL,)  # SQLite has no locks of rows; Django leaves the clause out there

    def around(self, _product_id: int) -> AbstractContextManager[Any]:
        return transaction.atomic()

    def read(self, product_id: int) -> Product:
        return Product.objects.select_for_update().get(pk=product_id)


class ConditionalUpdate(Guard):
    """``UPDATE ... SET stock = stock - 1 WHERE stock >= 1``: the write itself decides."""

    slug = "update"
    waits = False

    def write(self, product: Product, _held: Any) -> bool:
        shelf = Product.objects.filter(pk=product.pk, stock__gte=1)
        return shelf.update(stock=F("stock") - 1) == 1


class _RedisGuard(Guard):
    """A lock on the Redis server around the whole order."""

    @cached_property
    def client(self) -> Redis:
        """The peers' client, with a pool like that of our locks."""
        client: Redis = get_redis_connection("peers")
        return client


class RedisPy(_RedisGuard):
    """``Lock`` of redis-py as it comes: a try every 0.1 s."""

    slug = "redis-py"
    sleep: ClassVar[float] = 0.1

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
    """The same with a try every 0.01 s, for who would rather wake up early than late."""

    slug = "redis-py-eager"
    sleep = 0.01


class PythonRedisLock(_RedisGuard):
    """``Lock`` of python-redis-lock: each waiter blocks on a list, over a connection of its own."""

    slug = "python-redis-lock"

    @cached_property
    def client(self) -> Redis:
        """A client without a bound: each waiter keeps a connection, so a bound would be a trap."""
        url = f"{settings.STAGE['redis']}/2"
        return Redis.from_url(url, max_connections=4096, socket_timeout=90)

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


class Ours(Guard):
    """``lock(name, timeout=…, blocking_timeout=…)``."""

    slug = "ours"
    ours = True

    def around(self, product_id: int) -> AbstractContextManager[Any]:
        return lock(f"product:{product_id}", timeout=LEASE, blocking_timeout=WAIT)


class OursFenced(Ours):
    """The same, and the row takes no write that carries an older fence than the last one."""

    slug = "ours-fenced"

    def write(self, product: Product, held: Any) -> bool:
        product.stock -= 1
        product.fenced(held).save(update_fields=["stock"])
        return True


REFUSALS = (RefusedError, LockNotAcquired, RedisPyLockError)

GUARDS: dict[str, Guard] = {
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
