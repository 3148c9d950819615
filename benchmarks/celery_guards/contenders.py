"""The guards that are compared, each set up as its own documentation shows."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import md5
from typing import Any, ClassVar

from celery import Celery, Task

from benchmarks.celery_guards.diary import LOCKS, url
from benchmarks.site import BACKEND

SLUG = "CELERY_GUARDS_SLUG"
"""The environment variable with the name of the guard."""
LEASE = 600
"""Seconds: the cookbook's ten minutes, and for celery-singleton, which has no default, a lease
"slightly longer than the expected task duration" as it recommends."""
SHORT = 4
"""Seconds of a lease that is shorter than the run."""
SHORT_ALIAS = "short"
SOON = 0.5
"""Seconds until a retry: less than the unit in which RabbitMQ delays messages."""
LOCKS_SETTING = {
    "default": {"BACKEND": BACKEND},
    SHORT_ALIAS: {"BACKEND": BACKEND, "TIMEOUT": SHORT},
}

Body = Callable[..., Any]
"""Called with the task, the id of a shop and a label."""


class NoSuchOptionError(Exception):
    """The guard has no option for what a scenario needs."""


@dataclass(frozen=True)
class Wanted:
    """What a scenario needs of a guarded task."""

    key: str = "shop"
    """Of what the key is made: ``shop``, ``all`` arguments, ``label``, shop and ``items``, or
    ``shared`` with another task of the same shop."""
    lease: str = "usual"
    """``usual``, ``short``, or ``short, fixed`` where a guard would renew it otherwise."""
    duplicates: str = "usual"
    """``usual``, ``quiet``, ``raise``, ``wait`` (in the worker), ``again`` (soon) or ``newest``
    (replaces the one in the queue)."""


class Guard(ABC):
    """A way to keep two instances of a task from running at once."""

    slug: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    lock_keys: ClassVar[str]
    """The pattern of its locks' keys on the server."""

    def set_up(self, app: Celery) -> None:  # noqa: B027 - not every guard has settings
        """Configure an app."""

    @abstractmethod
    def task(self, app: Celery, name: str, body: Body, wanted: Wanted, **options: Any) -> Task:
        """Return a guarded task; `options` go to Celery."""


def _key_arguments(wanted: Wanted) -> list[str] | None:
    """Return the arguments of which another guard makes its key; ``None`` for all of them."""
    if wanted.key == "shared":
        raise NoSuchOptionError("its key begins with the name of the task")
    if wanted.duplicates in ("wait", "again", "newest"):
        raise NoSuchOptionError("a duplicate is skipped or refused")
    return {"shop": ["shop_id"], "label": ["label"], "items": ["shop_id", "items"]}.get(wanted.key)


class CeleryOnce(Guard):
    """celery-once: a lock from sending to the end, with its default lease of an hour."""

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

    def task(self, app: Celery, name: str, body: Body, wanted: Wanted, **options: Any) -> Task:
        once: dict[str, Any] = {"graceful": wanted.duplicates == "quiet"}
        if (names := _key_arguments(wanted)) is not None:
            once["keys"] = names
        if wanted.lease != "usual":
            once["timeout"] = SHORT
        return app.task(name=name, bind=True, base=self.base, once=once, **options)(body)


class CelerySingleton(Guard):
    """celery-singleton: a lock from sending to the end, which contains the id of its task."""

    slug = "celery-singleton"
    title = "celery-singleton"
    packages = ("celery-singleton",)
    lock_keys = "SINGLETONLOCK_*"

    def set_up(self, app: Celery) -> None:
        from celery_singleton import Singleton

        self.base = Singleton
        app.conf.singleton_backend_url = url(LOCKS)
        app.conf.singleton_lock_expiry = LEASE

    def task(self, app: Celery, name: str, body: Body, wanted: Wanted, **options: Any) -> Task:
        if (names := _key_arguments(wanted)) is not None:
            options["unique_on"] = names
        if wanted.lease != "usual":
            options["lock_expiry"] = SHORT
        if wanted.duplicates == "raise":
            options["raise_on_duplicate"] = True
        return app.task(name=name, bind=True, base=self.base, **options)(body)


class Cookbook(Guard):
    """The recipe of Celery's documentation: `cache.add` when a task begins, `cache.delete` after.

    As in the recipe, it keeps the lock if the run ended close to the end of the lease.
    """

    slug = "cookbook"
    title = "Celery's cookbook"
    packages = ("django-redis",)
    lock_keys = "*-lock-*"
    margin = 3
    """So many seconds before the end of the lease, the recipe stops deleting the lock."""

    def task(self, app: Celery, name: str, body: Body, wanted: Wanted, **options: Any) -> Task:
        if wanted.duplicates == "raise":
            raise NoSuchOptionError("it can only skip a duplicate")
        names = _key_arguments(wanted) or ["shop_id", "label"]
        seconds = LEASE if wanted.lease == "usual" else SHORT

        def guarded(self: Task, shop_id: int, label: str = "", items: Any = None) -> Any:
            given = {"shop_id": shop_id, "label": label, "items": items}
            arguments = ":".join(str(given[name]) for name in names)
            digest = md5(arguments.encode(), usedforsecurity=False).hexdigest()
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


OUR_KEYS = {"label": "{label}", "items": "items:{shop_id}:{items}", "shared": "shared:{shop_id}"}


class Ours(Guard):
    """`single_instance_task` with its defaults: a lock while the task runs, renewed."""

    slug = "ours"
    title = "django-redis-lock"
    packages = ("django-redis-lock",)
    lock_keys = "lock:*"
    scope = "run"

    def task(self, app: Celery, name: str, body: Body, wanted: Wanted, **options: Any) -> Task:
        from django_redis_lock.celery import single_instance_task

        ours: dict[str, Any] = {"scope": self.scope}
        # The label is mostly not part of the key: it tells the scenario which call is which.
        if wanted.key in ("shop", "all"):
            ours["unique_on"] = "all" if wanted.key == "all" else ["shop_id"]
        else:
            ours["key"] = OUR_KEYS[wanted.key]
        if wanted.key == "shared" or wanted.duplicates == "newest":
            if self.scope != "run":
                raise NoSuchOptionError("one message at a time has the key")
            ours["scope"] = "queue"
        if wanted.duplicates == "newest":
            ours["on_conflict"] = "supersede"
        elif wanted.duplicates == "wait":
            ours["on_conflict"] = {"run": "wait"}
        elif wanted.duplicates == "again":
            ours |= {"on_conflict": {"run": "retry"}, "countdown": SOON}
        if wanted.lease == "short":
            ours["using"] = SHORT_ALIAS
        elif wanted.lease == "short, fixed":
            ours["timeout"] = SHORT
        if wanted.duplicates == "raise":
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
