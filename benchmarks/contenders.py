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

LEASE = 10
"""Lease in seconds of every lock in every scenario, unless the scenario must hold it longer."""

ADMIN = "bench-admin"
"""Connections of this name belong to the benchmark and are left out of its counts."""


class Handle(Protocol):
    """What every contender's lock object has in common; native objects, nothing wrapped around."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


class AsyncHandle(Protocol):
    """The same for the contenders that are driven by asyncio."""

    async def acquire(self) -> Any: ...
    async def release(self) -> Any: ...


class Contender(ABC):
    """One way of locking, set up once in a process."""

    slug: ClassVar[str]
    title: ClassVar[str]
    ours: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = Redis.from_url(url)

    @cached_property
    def admin(self) -> Redis:
        """A connection to look at the server with, told apart by its name."""
        return Redis.from_url(self.url, client_name=ADMIN)

    @abstractmethod
    def lock(self, name: str, lease: int = LEASE) -> Handle:
        """Return a fresh handle."""

    @abstractmethod
    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        """Tell whether `thread`, the `place`-th to come, is waiting for the lock by now."""

    @abstractmethod
    def key(self, name: str) -> str:
        """Return the key that holds the lock."""


def asleep(thread: Thread) -> bool:
    """Tell whether a thread is in the sleep between two tries of a polling lock."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and "sleep(" in linecache.getline(
        frame.f_code.co_filename, frame.f_lineno
    )


def inside(thread: Thread, function: str) -> bool:
    """Tell whether a thread is in a function of some name, or in what that has called."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and any(at.f_code.co_name == function for at, _ in walk_stack(frame))


class RedisPy(Contender):
    """`Lock` of redis-py: SET NX PX, and a try every 100 ms while waiting."""

    slug = "redis-py"
    title = "redis-py Lock"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        handle: Handle = self.client.lock(name, timeout=lease)
        return handle

    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        return asleep(thread)

    def key(self, name: str) -> str:
        return name


class DjangoRedis(RedisPy):
    """`cache.lock` of django-redis: redis-py's Lock by way of Django's cache."""

    slug = "django-redis"
    title = "django-redis cache.lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure_django(url)
        from django.core.cache import cache

        self.cache: Any = cache  # django-redis adds lock() to what Django knows of caches

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        handle: Handle = self.cache.lock(name, timeout=lease)
        return handle

    def key(self, name: str) -> str:
        return str(self.cache.make_key(name))


class PythonRedisLock(Contender):
    """python-redis-lock: SET NX EX, and BLPOP on a signal list while waiting."""

    slug = "python-redis-lock"
    title = "python-redis-lock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        import redis_lock

        self.make = redis_lock.Lock

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        handle: Handle = self.make(self.client, name, expire=lease)
        return handle

    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        return int(self.admin.info("clients")["blocked_clients"]) >= place

    def key(self, name: str) -> str:
        return f"lock:{name}"


class Pottery(Contender):
    """`Redlock` of pottery over one server: a thread for each call, random tries while waiting."""

    slug = "pottery"
    title = "pottery Redlock"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        from pottery import Redlock

        self.make = Redlock
        self.masters = {self.client}

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return self.make(key=name, masters=self.masters, auto_release_time=lease)

    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        return asleep(thread)

    def key(self, name: str) -> str:
        return f"redlock:{name}"


class Ours(Contender):
    """`lock(name, timeout=…)`: a fixed lease, and a line on the server while waiting."""

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

    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        return int(self.admin.llen(f"lock-queue:{name}")) >= place and inside(thread, "wait")

    def key(self, name: str) -> str:
        return f"lock:{name}"


class OursRenewed(Ours):
    """`lock(name)`: the default, a lease that is renewed in the background."""

    slug = "ours-renewed"
    title = "django-redis-lock, auto-renewed"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return self.make(name)


class OursOnLayouts(Contender):
    """Ours on each of several layouts, in one process; `alias|name` is a lock on one of them.

    In place of a URL it is given Django's settings as JSON.
    """

    slug = "ours-on-layouts"
    title = "django-redis-lock on each layout"
    ours = True

    def __init__(self, url: str) -> None:
        configure(json.loads(url))
        from django.conf import settings

        from django_redis_lock import lock, locks
        from django_redis_lock.backends.getset import GetSetLockBackend
        from django_redis_lock.backends.redlock import RedlockLockBackend

        self.make = lock
        self.unordered = GetSetLockBackend, RedlockLockBackend
        self.backends = locks
        for alias in settings.LOCKS:
            backend = locks[alias]
            if isinstance(backend, RedlockLockBackend):
                backend.admit()  # its servers are new and may vote at once

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        alias, _, name = name.partition("|")
        return self.make(name, timeout=lease, using=alias)

    def in_line(self, name: str, thread: Thread, place: int) -> bool:
        alias, _, name = name.partition("|")
        backend = self.backends[alias]
        if not (inside(thread, "_perform") and inside(thread, "wait")):  # a call to the server
            return False
        if isinstance(backend, self.unordered):
            return True
        return len(backend.waiting(name)) >= place

    def key(self, name: str) -> str:
        raise NotImplementedError("each layout has its own")


class Wakeup(PythonRedisLock):
    """No lock at all: LPUSH in one process wakes BLPOP in another, the floor for any hand-off."""

    slug = "wakeup"
    title = "bare LPUSH→BLPOP"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return _Signal(self.client, name)


class _Signal:
    """A list used as a signal, with the verbs of a lock."""

    def __init__(self, client: Redis, name: str) -> None:
        self.client = client
        self.name = name

    def acquire(self) -> None:
        self.client.blpop(self.name, timeout=LEASE)

    def release(self) -> None:
        self.client.lpush(self.name, 1)


class Bare(RedisPy):
    """SET NX PX and DEL alone, the floor for what a pair costs the server."""

    slug = "bare"
    title = "bare SET and DEL"

    def lock(self, name: str, lease: int = LEASE) -> Handle:
        return _Key(self.client, name, lease)


class _Key:
    """A key that is set and deleted, with the verbs of a lock."""

    def __init__(self, client: Redis, name: str, lease: int) -> None:
        self.client = client
        self.name = name
        self.lease = 1000 * lease

    def acquire(self) -> None:
        self.client.set(self.name, "held", nx=True, px=self.lease)

    def release(self) -> None:
        self.client.delete(self.name)


class AsyncContender(ABC):
    """One way of locking from asyncio; made inside the event loop that uses it."""

    slug: ClassVar[str]
    title: ClassVar[str]
    ours: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def open(self) -> Callable[[str], AsyncHandle]:
        """Return a maker of handles for the running event loop."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what `open` made."""


class RedisPyAsync(AsyncContender):
    """`Lock` of redis.asyncio."""

    slug = "redis-py-async"
    title = "redis-py Lock, asyncio"

    def open(self) -> Callable[[str], AsyncHandle]:
        from redis.asyncio import Redis as AsyncRedis

        self.client = AsyncRedis.from_url(self.url)
        return lambda name: self.client.lock(name, timeout=LEASE)

    async def close(self) -> None:
        await self.client.aclose()


class OursAsync(AsyncContender):
    """`lock(name, timeout=…)` with `aacquire` and `arelease`."""

    slug = "ours-async"
    title = "django-redis-lock, asyncio"
    ours = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure_django(url)

    def open(self) -> Callable[[str], AsyncHandle]:
        from django_redis_lock import lock

        class _Handle:
            """The asyncio verbs under the names that redis.asyncio gives them."""

            def __init__(self, name: str) -> None:
                held = lock(name, timeout=LEASE)
                self.acquire = held.aacquire
                self.release = held.arelease

        return _Handle

    async def close(self) -> None:
        """Nothing to do: its connections end with their event loop."""


LOCKS: tuple[type[Contender], ...] = (Ours, RedisPy, DjangoRedis, PythonRedisLock, Pottery)
"""The five that take part in every scenario, in the order of the tables."""

AnyContender = type[Contender] | type[AsyncContender]
_ALL: tuple[AnyContender, ...] = (
    *LOCKS,
    OursRenewed,
    OursAsync,
    OursOnLayouts,
    RedisPyAsync,
    Wakeup,
    Bare,
)
EVERYONE: dict[str, AnyContender] = {contender.slug: contender for contender in _ALL}


def configure_django(url: str) -> None:
    """Configure Django in this process, with the cache and the locks on one server."""
    configure(
        {
            "CACHES": {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
            "LOCKS": {
                "default": {
                    "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend",
                    "LOCATION": url,
                    "TIMEOUT": LEASE,
                }
            },
        }
    )


def configure(wanted: dict[str, Any]) -> None:
    """Configure Django in this process."""
    import django
    from django.conf import settings

    settings.configure(INSTALLED_APPS=["django_redis_lock"], USE_TZ=True, **wanted)
    django.setup()
