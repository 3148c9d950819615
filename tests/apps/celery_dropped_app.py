"""The Celery app of the tests in which a worker drops messages that hold a place."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_redis_lock import lock
from django_redis_lock.celery import single_instance_task
from tests.settings import server_url
from tests.tools.celery_worker import events, tell_and_wait

QUEUE_NAME = "dropped"
NOWHERE = "dropped-nowhere"
"""A queue that no worker reads."""

app = Celery("dropped", broker=server_url(10), backend=server_url(11), set_as_current=False)
app.conf.update(
    accept_content=["json", "pickle"],
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "unacked_key": "dropped-unacked",
        "unacked_index_key": "dropped-unacked-index",
        "unacked_mutex_key": "dropped-unacked-mutex",
    },
    task_default_queue=QUEUE_NAME,
)


class Eventful(Task):
    """Does what the test says before the call begins, where it said something."""

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Be told once, by the test."""
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
    """Make a task that holds a place from its sending on."""

    @app.task(shared=False, name=f"{kind}-{scope}", base=Eventful, **options)
    @single_instance_task(scope=scope, key="{what}", on_conflict={"run": "wait"}, queue_timeout=60)
    def task(what: str, more: Any = None) -> str:
        return tell_and_wait(what)

    return task


SCOPES = ("queue", "queue_and_run")
early = {scope: define(scope, "early") for scope in SCOPES}
late = {
    scope: define(scope, "late", acks_late=True, reject_on_worker_lost=True) for scope in SCOPES
}


class Unreadable:
    """What the parent of a worker can read, which leads its group, and its children can not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return read, ()


def read() -> str:
    """Be unpickled."""
    if os.getpid() != os.getpgid(0):
        raise RuntimeError("unreadable")
    return "read"
