"""The locks that are compared, each in its documented use behind one small interface."""

import json
import linecache
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from threading import Thread
from traceback import walk_stack
from typing import Any, ClassVar, Protocol

from redis import Redis

from benchmarks.frame.server import ADMIN
from benchmarks.site import BACKEND, configure

LEASE = 10
"""Lease in seconds of every lock, unless a scenario must hold it longer."""


class Handle(Protocol):
    """What the contenders' own lock objects have in common; for asyncio, they return awaitables."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


class Contender(ABC):
    """A way to lock, set up once in a process."""

    slug: ClassVar[str]
    title: ClassVar[str]
    ours: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = Redis.from_url(url)

    @cached_property
    def admin(self) -> Redis:
        return Redis.from_url(self.url, client_name=ADMIN)

    @abstractmethod
    def lock(self, name: str, lease: int = LEASE) -> Handle: ...

    @abstractmethod
    def waits(self, name: str, thread: Thread, place: int) -> bool:
        """Whether `thread`, the `place`-th to come, waits for the lock."""

    def key(self, name: str) -> str:
        return name


def asleep(thread: Thread) -> bool:
    """Whether a thread sleeps between two attempts of a polling lock."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and "sleep(" in linecache.getline(
        frame.f_code.co_filename, frame.f_lineno
    )


def inside(thread: Thread, function: str) -> bool:
    """Whether a function of this qualified name is on the stack of a thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = () if frame is None else walk_stack(frame)
    return any(at.f_code.co_qualname == function for at, _ in stack)


class RedisPy(Contender):
    """`Lock` of redis-py: SET NX PX, and an attempt every 100 ms while waiting."""

    slug = "redis-py"
    title = "redis-py Lock"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        handle: Handle = self.client.lock(name, timeout=lease)
        return handle

    def waits(self, name: str, thread: Thread, place: int) -> bool:
        return asleep(thread)


class DjangoRedis(RedisPy):
    """`cache.lock` of django-redis: redis-py's Lock through Django's cache."""

    slug = "django-redis"
    title = "django-redis cache.lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure_django(url)
        from django.core.cache import cache

        self.cache: Any = cache  # Django's type does not know django-redis's lock()

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        handle: Handle = self.cache.lock(name, timeout=lease)
        return handle

    def key(self, name: str) -> str:
        return str(self.cache.make_key(name))


class PythonRedisLock(Contender):
    """python-redis-lock: SET NX EX, and BLPOP on a signal list while waiting."""

    slug = "python-redis-lock"
    title = "python-redis-lock"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        import redis_lock

        handle: Handle = redis_lock.Lock(self.client, name, expire=lease)
        return handle

    def waits(self, name: str, thread: Thread, place: int) -> bool:
        return int(self.admin.info("clients")["blocked_clients"]) >= place

    def key(self, name: str) -> str:
        return f"lock:{name}"


class Pottery(Contender):
    """`Redlock` of pottery on one server: a thread for each call, random retries."""

    slug = "pottery"
    title = "pottery Redlock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.masters = {self.client}

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        from pottery import Redlock

        handle: Handle = Redlock(key=name, masters=self.masters, auto_release_time=lease)
        return handle

    def waits(self, name: str, thread: Thread, place: int) -> bool:
        return asleep(thread)

    def key(self, name: str) -> str:
        return f"redlock:{name}"


class Ours(Contender):
    """`lock(name, timeout=…)`: a fixed lease, and a queue on the server while waiting."""

    slug = "ours"
    title = "django-redis-lock"
    ours = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure_django(url)
        from django_redis_lock import lock, locks

        self.make = lock
        self.backend = locks["default"]

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return self.make(name, timeout=lease)

    def waits(self, name: str, thread: Thread, place: int) -> bool:
        return int(self.admin.llen(f"lock-queue:{name}")) >= place and inside(thread, "Wait.do")

    def key(self, name: str) -> str:
        return f"lock:{name}"


class OursRenewed(Ours):
    """`lock(name)`: the default, a lease that is renewed in the background."""

    slug = "ours-renewed"
    title = "django-redis-lock, auto-renewed"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return self.make(name)


class OursOnLayouts(Contender):
    """Ours on several layouts in one process; `alias|name` is a lock on one of them.

    It takes Django's settings as JSON instead of a URL.
    """

    slug = "ours-on-layouts"
    title = "django-redis-lock on each layout"
    ours = True

    def __init__(self, url: str) -> None:
        wanted = json.loads(url)
        configure(**wanted)
        from django_redis_lock import lock, locks
        from django_redis_lock.backends.getset import GetSetLockBackend
        from django_redis_lock.backends.redlock import RedlockLockBackend

        self.make = lock
        self.unordered = GetSetLockBackend, RedlockLockBackend
        self.backends = locks
        for alias in wanted["LOCKS"]:
            backend = locks[alias]
            if isinstance(backend, RedlockLockBackend):
                backend.admit()  # its servers are new and may vote at once

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        alias, _, name = name.partition("|")
        return self.make(name, timeout=lease, using=alias)

    def waits(self, name: str, thread: Thread, place: int) -> bool:
        alias, _, name = name.partition("|")
        backend = self.backends[alias]
        if not inside(thread, "Wait.do"):  # it is calling the server
            return False
        if isinstance(backend, self.unordered):
            return True
        return len(backend.waiting(name)) >= place


class Wakeup(PythonRedisLock):
    """Not a lock: LPUSH in one process wakes BLPOP in another, the lower bound for a hand-off."""

    slug = "wakeup"
    title = "bare LPUSH→BLPOP"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return _Calls(
            lambda: self.client.blpop(name, timeout=LEASE), lambda: self.client.lpush(name, 1)
        )


class Bare(RedisPy):
    """Only SET NX PX and DEL, the lower bound for what a pair costs the server."""

    slug = "bare"
    title = "bare SET and DEL"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return _Calls(
            lambda: self.client.set(name, "held", nx=True, px=1000 * lease),
            lambda: self.client.delete(name),
        )


class _Calls:
    def __init__(self, acquire: Callable[[], Any], release: Callable[[], Any]) -> None:
        self.acquire = acquire
        self.release = release


class RedisPyAsync:
    """`Lock` of redis.asyncio."""

    slug = "redis-py-async"
    title = "redis-py Lock, asyncio"
    ours = False

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self) -> Callable[[str], Handle]:
        """Return a function that makes handles for the running event loop."""
        from redis.asyncio import Redis as AsyncRedis

        self.client = AsyncRedis.from_url(self.url)
        return lambda name: self.client.lock(name, timeout=LEASE)

    async def close(self) -> None:
        """Close what `open` made."""
        await self.client.aclose()


class OursAsync:
    """`lock(name, timeout=…)` with `aacquire` and `arelease`."""

    slug = "ours-async"
    title = "django-redis-lock, asyncio"
    ours = True

    def __init__(self, url: str) -> None:
        configure_django(url)

    def open(self) -> Callable[[str], Handle]:
        from django_redis_lock import lock

        def handle(name: str) -> Handle:
            held = lock(name, timeout=LEASE)
            return _Calls(held.aacquire, held.arelease)

        return handle

    async def close(self) -> None:
        """Nothing to do: the connections close with their event loop."""


LOCKS: tuple[type[Contender], ...] = (Ours, RedisPy, DjangoRedis, PythonRedisLock, Pottery)
"""The five that take part in every scenario, in the order of the tables."""

EVERYONE: dict[str, type[Contender | OursAsync | RedisPyAsync]] = {
    contender.slug: contender
    for contender in (
        *LOCKS,
        OursRenewed,
        OursAsync,
        OursOnLayouts,
        RedisPyAsync,
        Wakeup,
        Bare,
    )
}


def configure_django(url: str) -> None:
    configure(
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": url, "TIMEOUT": LEASE}},
    )
