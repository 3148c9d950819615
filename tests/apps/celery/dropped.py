"""Tasks whose messages hold a place in the queue, and which a worker drops."""

from __future__ import annotations

import os
from typing import Any

from celery import Task
from celery.exceptions import Reject

from django_redis_lock import lock
from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import WAITING, app
from tests.tools.celery_worker import events, tell_and_wait


class Eventful(Task):
    """Does before the call what the test asks for, if anything."""

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Follow the test's instruction, once."""
        with events() as client:
            said, _, name = (client.lpop(f"before:{kwargs['what']}") or "").partition(" ")
        if said == "exit":
            os._exit(1)
        if said == "fail":
            raise ValueError(said)
        if said == "reject":
            raise Reject(said)
        if said == "wait":
            with lock(name):
                pass
        if said == "retry":
            raise self.retry(countdown=0)


def define(scope: str, kind: str, **options: Any) -> Any:
    """Return a task that holds a place from its sending on."""

    @app.task(shared=False, name=f"{kind}-{scope}", base=Eventful, **options)
    @single_instance_task(scope=scope, key="{what}", on_conflict={"run": "wait"}, queue_timeout=60)
    def task(what: str, more: Any = None) -> str:
        return tell_and_wait(what)

    return task


early = {scope: define(scope, "early") for scope in WAITING}
late = {
    scope: define(scope, "late", acks_late=True, reject_on_worker_lost=True) for scope in WAITING
}


class Unreadable:
    """Can be unpickled by a worker's parent, which leads its group, but not by its children."""

    def __reduce__(self) -> tuple[Any, ...]:
        return read, ()


def read() -> str:
    """Be unpickled."""
    if os.getpid() != os.getpgid(0):
        raise RuntimeError("unreadable")
    return "read"
