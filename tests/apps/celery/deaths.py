"""Tasks whose children, workers and messages come to an end."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from time import monotonic
from typing import Any

from django.dispatch import receiver

from django_redis_lock.celery import single_instance_task, task_lock_lost
from django_redis_lock.exceptions import LockError
from tests.apps.celery.app import app
from tests.tools import alive
from tests.tools.celery_worker import events, tell, tell_and_wait


def carry_out(what: str, busy: float = 0.0) -> Any:
    """Report that a task runs, then be busy for some seconds or do what the test says.

    That is ``exit`` with a status, ``look`` for the state of the lock, or any other text to return.
    """
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
    """Return what a running task knows about its lock."""
    lock = single_instance_task.current()
    known = {"fence": lock.fence, "lost": lock.lost}
    try:
        lock.ensure_held()
    except LockError as error:
        return {**known, "error": type(error).__name__}
    return {**known, "error": None}


@receiver(task_lock_lost)
def on_lock_lost(sender: Any, task_id: str, key: str, **kwargs: Any) -> None:
    """Report a lost lock."""
    if sender.name.startswith(__name__):
        with events() as client:
            client.rpush(f"lost:{key}", task_id)


@app.task(shared=False)
@single_instance_task(key="{what}")
def work(what: str, busy: float = 0.0) -> Any:
    """Has the lease of the default backend, renewed."""
    return carry_out(what, busy)


@app.task(shared=False)
@single_instance_task(key="{what}", on_conflict="wait")
def successor(what: str) -> Any:
    """Waits for the lock of any other task here."""
    return carry_out(what)


@app.task(shared=False, acks_late=True)
@single_instance_task(key="{what}", on_conflict="wait")
def late_successor(what: str) -> Any:
    """The same, acknowledged at its end."""
    return carry_out(what)


@app.task(shared=False, acks_late=True)
@single_instance_task(key="{what}")
def late(what: str) -> Any:
    """Is acknowledged at its end."""
    return carry_out(what)


@app.task(shared=False, acks_late=True, reject_on_worker_lost=True)
@single_instance_task(key="{what}")
def requeued(what: str) -> Any:
    """Is delivered again when its child dies."""
    return carry_out(what)


@app.task(shared=False, acks_late=True, reject_on_worker_lost=True)
@single_instance_task(key="{what}", scope="queue_and_run")
def requeued_whole(what: str) -> Any:
    """Is delivered again when its child dies; has one lock from its sending to its end."""
    return carry_out(what)


@app.task(shared=False, acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)
@single_instance_task(key="{what}")
def retried(what: str) -> Any:
    """Is sent again when its child dies."""
    return carry_out(what)


@app.task(shared=False, acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)
@single_instance_task(key="{what}", scope="queue_and_run")
def retried_whole(what: str) -> Any:
    """Is sent again when its child dies; has one lock from its first sending to its end."""
    return carry_out(what)


@app.task(shared=False, acks_late=True)
@single_instance_task(key="{what}", using="brief")
def brief(what: str, busy: float = 0.0) -> Any:
    """Has a short lease, renewed."""
    return carry_out(what, busy)


@app.task(shared=False)
@single_instance_task(1, key="{what}")
def fixed(what: str) -> Any:
    """Has a short lease that is not renewed."""
    return carry_out(what)


@app.task(shared=False)
@single_instance_task(key="{what}", using="proxied")
def proxied(what: str) -> Any:
    """Reaches its lock through a proxy."""
    return carry_out(what)


@app.task(shared=False)
@single_instance_task(key="{what}", scope="queue", queue_timeout=60)
def queued(what: str) -> Any:
    """Holds a place while it waits, and another lock while it runs."""
    return carry_out(what)


@app.task(shared=False)
@single_instance_task(key="{what}", scope="queue_and_run", queue_timeout=60)
def whole(what: str, busy: float = 0.0) -> Any:
    """Holds one lock from its sending to its end."""
    return carry_out(what, busy)


@app.task(shared=False)
@single_instance_task(key="{what}", scope="queue", on_conflict={"run": "wait"}, queue_timeout=60)
def patient(what: str) -> Any:
    """Holds a place while it waits, for its message to come and for the lock of its run."""
    return carry_out(what)
