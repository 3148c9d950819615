"""Tasks whose children, workers and messages come to an end."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from time import monotonic
from typing import Any

from celery.signals import task_prerun
from django.dispatch import receiver

from django_redis_lock import lock
from django_redis_lock.celery import single_instance_task, task_lock_lost
from django_redis_lock.exceptions import LockError
from tests.apps.celery.app import app
from tests.tools import alive
from tests.tools.celery_worker import events, tell, tell_and_wait


def carry_out(what: str, busy: float = 0.0) -> Any:
    """Report that a task runs, then be busy for some seconds or do what the test says. That is
    ``exit`` with a status, ``look`` for the state of the lock, or any other text to return."""
    with recorded(what):
        if busy:
            tell(what)
            hold_gil(busy)
            return look()
        said = tell_and_wait(what)
        if said.startswith("exit"):
            os._exit(int(said.removeprefix("exit")))
        return look() if said == "look" else said


@contextlib.contextmanager
def recorded(what: str) -> Iterator[None]:
    """Record the run, and each other one that is alive when it begins."""
    me = f"{os.getpid()} {uuid.uuid4()}"
    with events() as client:
        client.incr(f"runs:{what}")
        client.sadd(f"inside:{what}", me)
        for other in client.smembers(f"inside:{what}") - {me}:
            if alive(int(other.split()[0])):
                client.rpush(f"overlaps:{what}", f"{me} began while {other} ran")
        try:
            yield
        finally:
            client.srem(f"inside:{what}", me)


def hold_gil(seconds: float) -> None:
    """Compute in C, so that no other thread and no signal handler of the process runs."""
    end = monotonic() + seconds
    all(map(end.__gt__, iter(monotonic, None)))


def look() -> dict[str, Any]:
    lock = single_instance_task.current()
    known = {"fence": lock.fence, "lost": lock.lost}
    try:
        lock.ensure_held()
    except LockError as error:
        return {**known, "error": type(error).__name__}
    return {**known, "error": None}


@receiver(task_lock_lost)
def on_lock_lost(sender: Any, task_id: str, key: str, **kwargs: Any) -> None:
    if sender.name.startswith(__name__):
        with events() as client:
            client.rpush(f"lost:{key}", task_id)


def define(name: str, *lease: float, task: dict[str, Any] | None = None, **guard: Any) -> Any:
    options = {"name": f"{__name__}.{name}", "shared": False, **(task or {})}
    return app.task(**options)(single_instance_task(*lease, key="{what}", **guard)(carry_out))


LATE = {"acks_late": True}
REQUEUED = {**LATE, "reject_on_worker_lost": True}
RETRIED = {**LATE, "retry_on_worker_lost": True, "default_retry_delay": 0}
"""Of tasks whose messages are delivered, or sent again, when their children die."""

work = define("work")
successor = define("successor", on_conflict="wait")
late_successor = define("late_successor", task=LATE, on_conflict="wait")
late = define("late", task=LATE)
UNREACHED = "unreached"
"""In the name of a task whose child is killed before the guard is called."""
REST = 3.0
rested = define("rested", on_conflict="wait", at_least_for=REST)
rested_permit = define("rested_permit", concurrency=2, on_conflict="wait", at_least_for=REST)
rested_requeued = define("rested_requeued", task=REQUEUED, at_least_for=REST)
several = define("several", concurrency=2)
requeued = define("requeued", task=REQUEUED)
requeued_whole = define("requeued_whole", task=REQUEUED, scope="queue_and_run")
requeued_late = define(
    "requeued_late", task={**LATE, "acks_on_failure_or_timeout": False}, scope="queue_and_run"
)
retried = define("retried", task=RETRIED)
retried_whole = define("retried_whole", task=RETRIED, scope="queue_and_run")
brief = define("brief", task=LATE, using="brief")
"""Has a short lease, renewed."""
fixed = define("fixed", 1)
proxied = define("proxied", using="proxied")
queued = define("queued", scope="queue", queue_timeout=60)
whole = define("whole", scope="queue_and_run", queue_timeout=60)
patient = define("patient", scope="queue", on_conflict={"run": "wait"}, queue_timeout=60)
"""Waits with a place in the queue for its message to come, and then for the lock of its run."""


@task_prerun.connect
def on_prerun(sender: Any, args: Any, **kwargs: Any) -> None:
    if sender.name.startswith(__name__) and UNREACHED in args[0]:
        tell_and_wait(args[0])


@app.task(name=f"{__name__}.locking", shared=False)
def locking(what: str) -> None:
    """Take locks of its own; at the end one is detached, and one is left for its lease."""
    detached = lock(f"{what}-detached")
    detached.acquire()
    detached.detach(600)
    lock(f"{what}-fixed", timeout=600).acquire()
    with lock(f"{what}-renewed"):
        tell_and_wait(what)
