"""The guards that are compared, each set up as its own documentation shows."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from typing import Any, ClassVar

from celery import Celery, Task

from .diary import LOCKS, url

SLUG = "CELERY_GUARDS_SLUG"
"""The environment variable with the guard's name."""
LEASE = 600
"""Seconds: the cookbook's ten minutes, and what celery-singleton is given for its recommendation
of a lease "slightly longer than the expected task duration"; by default it has none."""
SHORT = 4
"""Seconds of the lease that a run outlasts."""
SHORT_ALIAS = "short"
LOCKS_SETTING = {
    "default": {"BACKEND": "django_redis_lock.backends.redis.RedisLockBackend"},
    SHORT_ALIAS: {"BACKEND": "django_redis_lock.backends.redis.RedisLockBackend", "TIMEOUT": SHORT},
}

Body = Callable[..., Any]
"""Called with the task, the number of a shop and a label."""

BY_SHOP = "by shop"
BY_ALL = "by all arguments"


class NoSuchOptionError(Exception):
    """The guard has nothing for what a scenario is about."""


class Guard(ABC):
    """One way to keep two instances of a task from running at once."""

    slug: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    lock_keys: ClassVar[str]
    """Pattern of the keys by which its locks are known on the server."""

    def set_up(self, app: Celery) -> None:  # noqa: B027 - not every guard has settings
        """Configure an app."""

    @abstractmethod
    def task(
        self,
        app: Celery,
        name: str,
        body: Body,
        *,
        unique: str = BY_SHOP,
        lease: str = "usual",
        duplicates: str = "usual",
        **options: Any,
    ) -> Task:
        """Return a guarded task.

        `lease`: ``usual``, ``short``, or ``short, fixed`` where a guard would renew it otherwise.
        `duplicates`: ``usual``, ``quiet`` or ``raise``. `options` go to Celery.
        """


class CeleryOnce(Guard):
    """celery-once: a lock from sending to the end, its default lease of an hour."""

    slug = "celery-once"
    title = "celery-once"
    packages = ("celery-once",)
    lock_keys = "qo_*"

    def set_up(self, app: Celery) -> None:
        from celery_once import QueueOnce

        self.base = QueueOnce
        app.conf.ONCE = {
            "backend": "celery_once.backends.Redis",
            "settings": {"url": url(LOCKS), "default_timeout": 60 * 60},
        }

    def task(
        self,
        app: Celery,
        name: str,
        body: Body,
        *,
        unique: str = BY_SHOP,
        lease: str = "usual",
        duplicates: str = "usual",
        **options: Any,
    ) -> Task:
        once: dict[str, Any] = {"graceful": duplicates == "quiet"}
        if unique == BY_SHOP:
            once["keys"] = ["shop_id"]
        if lease != "usual":
            once["timeout"] = SHORT
        return app.task(name=name, bind=True, base=self.base, once=once, **options)(body)


class CelerySingleton(Guard):
    """celery-singleton: a lock from sending to the end, found again by the id of its task."""

    slug = "celery-singleton"
    title = "celery-singleton"
    packages = ("celery-singleton",)
    lock_keys = "SINGLETONLOCK_*"

    def set_up(self, app: Celery) -> None:
        from celery_singleton import Singleton

        self.base = Singleton
        app.conf.singleton_backend_url = url(LOCKS)
        app.conf.singleton_lock_expiry = LEASE

    def task(
        self,
        app: Celery,
        name: str,
        body: Body,
        *,
        unique: str = BY_SHOP,
        lease: str = "usual",
        duplicates: str = "usual",
        **options: Any,
    ) -> Task:
        if unique == BY_SHOP:
            options["unique_on"] = ["shop_id"]
        if lease != "usual":
            options["lock_expiry"] = SHORT
        if duplicates == "raise":
            options["raise_on_duplicate"] = True
        return app.task(name=name, bind=True, base=self.base, **options)(body)


class Cookbook(Guard):
    """The recipe of Celery's documentation: `cache.add` when a task begins, `cache.delete` after.

    It leaves the lock alone when the run came near to the end of the lease, as the recipe does.
    """

    slug = "cookbook"
    title = "Celery's cookbook"
    packages = ("django-redis",)
    lock_keys = "*-lock-*"
    margin = 3
    """Seconds before the end of the lease from which on the recipe no longer deletes the lock."""

    def task(
        self,
        app: Celery,
        name: str,
        body: Body,
        *,
        unique: str = BY_SHOP,
        lease: str = "usual",
        duplicates: str = "usual",
        **options: Any,
    ) -> Task:
        if duplicates == "raise":
            raise NoSuchOptionError("a duplicate is skipped, and nothing else")
        seconds = LEASE if lease == "usual" else SHORT

        def guarded(self: Task, shop_id: int, label: str = "") -> Any:
            told_apart = f"{shop_id}" if unique == BY_SHOP else f"{shop_id}:{label}"
            digest = md5(told_apart.encode(), usedforsecurity=False).hexdigest()
            with _added(f"{self.name}-lock-{digest}", self.app.oid, seconds) as is_ours:
                if is_ours:
                    return body(self, shop_id, label)
            return None

        return app.task(name=name, bind=True, **options)(guarded)


@contextmanager
def _added(key: str, owner: str, seconds: int) -> Iterator[bool]:
    from django.core.cache import cache

    too_late = time.monotonic() + seconds - Cookbook.margin
    is_ours = cache.add(key, owner, seconds)
    try:
        yield is_ours
    finally:
        if is_ours and time.monotonic() < too_late:
            cache.delete(key)


class Ours(Guard):
    """`single_instance_task` as it is by default: a lock while the task runs, renewed."""

    slug = "ours"
    title = "django-redis-lock"
    packages = ("django-redis-lock",)
    lock_keys = "lock:*"
    scope = "run"

    def task(
        self,
        app: Celery,
        name: str,
        body: Body,
        *,
        unique: str = BY_SHOP,
        lease: str = "usual",
        duplicates: str = "usual",
        **options: Any,
    ) -> Task:
        from django_redis_lock.celery import single_instance_task

        ours: dict[str, Any] = {"scope": self.scope}
        # The label is no part of the key, for it only tells the script which call is which.
        ours["unique_on"] = "all" if unique == BY_ALL else ["shop_id"]
        if lease == "short":
            ours["using"] = SHORT_ALIAS
        elif lease == "short, fixed":
            ours["timeout"] = SHORT
        if duplicates == "raise":
            ours["on_conflict"] = "raise"
        return single_instance_task(**ours)(app.task(name=name, bind=True, **options)(body))


class OursQueued(Ours):
    """The same with ``scope="queue_and_run"``: a lock from sending to the end."""

    slug = "ours-queue-and-run"
    title = 'the same, scope="queue_and_run"'
    scope = "queue_and_run"


GUARDS: dict[str, type[Guard]] = {
    guard.slug: guard for guard in (Ours, OursQueued, CeleryOnce, CelerySingleton, Cookbook)
}
"""In the order of the table."""
