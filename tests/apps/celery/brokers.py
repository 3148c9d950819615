"""The tasks of the tests of brokers: workers and senders have an app each, with their options."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend
from django_celery_results.backends import CacheBackend, DatabaseBackend

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import QUEUE_AND_RUN, SCOPES, new_app
from tests.settings import server_url
from tests.tools.celery_worker import counted, record, tell_and_wait

SERIALIZERS = ("json", "pickle", "msgpack", "yaml")
BACKENDS = ("none", "redis", "django-db", "cache")
STORING = ("json-redis", "pickle-django-db", "msgpack-redis", "yaml-cache")
"""Variants that between them have each serializer, and each backend that stores."""
SAFE = {"acks_late": True, "reject_on_worker_lost": True}


def backend(app: Celery, kind: str, serializer: str) -> Any:
    options: dict[str, Any] = {"app": app, "serializer": serializer, "accept": [serializer]}
    if kind == "none":
        return DisabledBackend(**options)
    if kind == "redis":
        # Apart from the results that the app's own backend listens to, and reads as JSON.
        prefix = {"task_keyprefix": f"{serializer}-task-meta-"}
        return type("PrefixedBackend", (RedisBackend,), prefix)(url=server_url(11), **options)
    return {"django-db": DatabaseBackend, "cache": CacheBackend}[kind](**options)


# Bodies.


def wait(what: str) -> dict[str, Any]:
    with counted(what):
        return {"said": tell_and_wait(what), "about": [what, None]}


def be_quick(what: str) -> str:
    with counted(what):
        return f"ran {what}"


def be_killed(self: Task, what: str) -> str:
    """Run until the test says go, or that the process is to be killed."""
    record(what, "ran")
    if tell_and_wait(what) == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ran {what}"


def come_again(self: Task, what: str) -> list[Any]:
    with counted(what):
        if not self.request.retries:
            raise self.retry(countdown=0)
        return [what, self.request.retries]


def keep(what: str, *args: Any, **kwargs: Any) -> str:
    return be_quick(what)


class _Maker:
    def __init__(self, app: Celery) -> None:
        self.app = app

    def make(
        self, name: str, body: Callable[..., Any], task: dict[str, Any] | None = None, **guard: Any
    ) -> Any:
        options = {"key": name + ":{what}", **guard}
        options = {key: value for key, value in options.items() if value is not None}
        decorate = self.app.task(name=name, shared=False, lazy=False, **(task or {}))
        return decorate(single_instance_task(**options)(body))

    def make_variants(self) -> None:
        """Make the tasks whose messages and results go by each serializer and backend."""
        for serializer, kind in itertools.product(SERIALIZERS, BACKENDS):
            results = {"backend": backend(self.app, kind, serializer), "serializer": serializer}
            end = f"{serializer}-{kind}"
            self.make(f"plain-{end}", be_quick, results, scope=QUEUE_AND_RUN)
            self.make(f"late-{end}", wait, {**results, **SAFE})
            self.make(f"parked-{end}", keep, results, on_conflict="park")
            for policy in ("skip", "raise"):
                self.make(f"{policy}-{end}", wait, results, on_conflict=policy)

    def make_rest(self) -> None:
        bound = {"bind": True, "max_retries": 2}
        self.make("parked-again", come_again, bound, on_conflict="park")
        for scope in SCOPES:
            self.make(f"safe-{scope}", be_killed, {**bound, **SAFE}, scope=scope)
            self.make(f"quick-{scope}", be_quick, scope=scope)


def make_app(broker: str, role: str) -> Celery:
    """Return an app on a broker, of a worker or a sender."""
    app = new_app(role, broker, accept_content=[*SERIALIZERS], cache_backend="results")
    maker = _Maker(app)
    maker.make_variants()
    maker.make_rest()
    app.finalize()
    return app
