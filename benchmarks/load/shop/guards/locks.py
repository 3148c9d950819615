"""Locks on a Redis server: of redis-py, python-redis-lock and this package."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, ClassVar

from django.conf import settings
from django_redis import get_redis_connection
from redis import Redis

from benchmarks.load.shop.errors import RefusedError
from benchmarks.load.shop.guards.base import LEASE, WAIT, NoGuard
from benchmarks.load.shop.models import Product
from django_redis_lock import lock


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

    def take(self, found: Product, held: Any) -> bool:
        found.stock -= 1
        found.fenced(held).save(update_fields=["stock"])
        return True
