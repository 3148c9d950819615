"""The locks that are compared, each in its documented use, and the floors below them."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

LEASE = 10
"""Seconds."""
OURS, BEFORE, REDIS_PY, PYTHON_REDIS_LOCK = "ours", "before", "redis-py", "python-redis-lock"
POTTERY, FIFO = "pottery", "redis-fifo-lock"
BARE, TOKEN = "bare", "token"
WITH_LEASES = (OURS, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, FIFO)
PERMIT, BOOK = "semaphore", "book"
PERMITS = 3
"""How many the semaphores let in."""


class Contender:
    """A way to lock. ``lock()`` returns an object with ``acquire()`` and ``release()``."""

    title = ""
    places = 1
    """How many may hold a name at once."""
    lease = LEASE
    renewed = False
    """Whether to have leases renewed; those of redis-py and pottery are extended by hand alone."""

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url)
        self.held: list[Any] = []
        self.threads: list[threading.Thread] = []
        self.notes: list[Any] = []

    def lock(self, name: str) -> Any:
        raise NotImplementedError

    def held_by(self, handle: Any) -> bool:
        """Ask whether a handle that acquired its lock still holds it, as the library has it."""
        return bool(handle.owned())


class Ours(Contender):
    """``lock(name, timeout=…)`` with the settings of README: LOCATION is an alias of CACHES."""

    title = "django-redis-lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure(url)
        from django_redis_lock import lock, locks

        self._make = lock
        self.locks = locks

    def lock(self, name: str) -> Any:
        return self._make(name, **({} if self.renewed else {"timeout": self.lease}))


class Before(Ours):
    """The same, of another checkout."""

    title = "django-redis-lock, before"


class RedisPy(Contender):
    """``Lock`` of redis-py: SET NX PX, and an attempt every 100 ms while waiting."""

    title = "redis-py Lock"

    def lock(self, name: str) -> Any:
        return self.client.lock(name, timeout=self.lease)


class PythonRedisLock(Contender):
    """python-redis-lock: SET NX EX, and BLPOP on a signal list while waiting."""

    title = "python-redis-lock"

    def lock(self, name: str) -> Any:
        import redis_lock

        return redis_lock.Lock(self.client, name, expire=self.lease, auto_renewal=self.renewed)

    def held_by(self, handle: Any) -> bool:
        return bool(handle.get_owner_id() == handle.id)


class Pottery(Contender):
    """``Redlock`` of pottery with one server: SET NX PX, and an attempt every 100 ms on average."""

    title = "pottery"

    def lock(self, name: str) -> Any:
        from pottery import Redlock

        return Redlock(key=name, masters={self.client}, auto_release_time=self.lease)

    def held_by(self, handle: Any) -> bool:
        return bool(handle.locked())


class Fifo(Contender):
    """redis-fifo-lock: a queue on the server, and leases that are always renewed. It is for asyncio
    alone, so a loop in another thread runs it."""

    title = "redis-fifo-lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        from redis.asyncio import Redis as AsyncRedis

        self.client_of_loop, self.loop = AsyncRedis.from_url(url), asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        from redis_fifo_lock import FifoLock

        # Waiters look for a lease that has ended every half of one, as with the defaults.
        milliseconds = {"lease_ms": 1000 * self.lease, "poll_ms": 500 * self.lease}
        lock = FifoLock(self.client_of_loop, name, **milliseconds)
        held = asyncio.run_coroutine_threadsafe(lock.acquire(), self.loop).result()
        try:
            yield held
        finally:
            asyncio.run_coroutine_threadsafe(lock.release(held), self.loop).result()

    def held_by(self, handle: Any) -> bool:
        return not handle.lost.is_set()


class Bare(Contender):
    """SET and DEL: what the server has to do at the least."""

    title = "bare SET and DEL"

    def lock(self, name: str) -> Any:
        return _Bare(self.client, name)


class _Bare:
    def __init__(self, client: Redis, name: str) -> None:
        self._client, self._name = client, name

    def acquire(self) -> None:
        self._client.set(self._name, "held", nx=True, px=LEASE * 1000)

    def release(self) -> None:
        self._client.delete(self._name)


class Token(Contender):
    """A token that is passed on through a list: the floor of a fair hand-off."""

    title = "bare token, LPUSH to BLPOP"

    def lock(self, name: str) -> Any:
        return _Token(self.client, name)


class _Token:
    def __init__(self, client: Redis, name: str) -> None:
        self._client, self._name = client, f"token:{name}"

    def acquire(self) -> None:
        self._client.blpop([self._name], LEASE)

    def release(self) -> None:
        self._client.lpush(self._name, "token")


class Permit(Ours):
    """``semaphore(name, limit, timeout=…)``, with the settings of README."""

    title = "django-redis-lock semaphore"
    places = PERMITS

    def lock(self, name: str) -> Any:
        from django_redis_lock import semaphore

        return semaphore(name, self.places, timeout=LEASE)


class Book(Contender):
    """The fair semaphore of the book "Redis in Action", chapter 6.3, built on redis-py by hand.

    A sorted set has when each owner took its place, another one its number, by which the first ones
    are in. A waiter tries again every 10 ms, with a new number.
    """

    title = "sorted sets and polling, by hand"
    places = PERMITS

    def lock(self, name: str) -> Any:
        return _Book(self.client, name, self.places)


class _Book:
    def __init__(self, client: Redis, name: str, limit: int) -> None:
        self._client, self._limit, self._own = client, limit, uuid.uuid4().hex
        self._times, self._numbers, self._last = f"{name}:at", f"{name}:owners", f"{name}:last"

    def acquire(self) -> None:
        while not self._try():
            time.sleep(0.01)

    def _try(self) -> bool:
        with self._client.pipeline() as pipe:
            pipe.zremrangebyscore(self._times, "-inf", time.time() - LEASE)
            pipe.zinterstore(self._numbers, {self._numbers: 1, self._times: 0})
            *_, number = pipe.incr(self._last).execute()
            pipe.zadd(self._times, {self._own: time.time()})
            pipe.zadd(self._numbers, {self._own: number})
            *_, rank = pipe.zrank(self._numbers, self._own).execute()
        if rank >= self._limit:
            self.release()
        return bool(rank < self._limit)

    def release(self) -> None:
        with self._client.pipeline() as pipe:
            pipe.zrem(self._times, self._own).zrem(self._numbers, self._own).execute()


CONTENDERS: dict[str, type[Contender]] = {
    OURS: Ours,
    BEFORE: Before,
    REDIS_PY: RedisPy,
    PYTHON_REDIS_LOCK: PythonRedisLock,
    POTTERY: Pottery,
    FIFO: Fifo,
    BARE: Bare,
    TOKEN: Token,
    PERMIT: Permit,
    BOOK: Book,
}


def configure(url: str) -> None:
    """Set Django up as README does, once in a process."""
    from django.conf import settings

    if settings.configured:
        return
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    settings.configure(
        SECRET_KEY="benchmark",  # noqa: S106 - it signs parked messages
        INSTALLED_APPS=["django_redis_lock"],
        CACHES={"default": cache, "locks": cache},
        LOCKS={
            "default": {
                "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
                "LOCATION": "locks",
            }
        },
    )
    import django

    django.setup()
