"""The Celery app of the tests in which children, workers and messages come to an end."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from time import monotonic
from typing import Any

import billiard
from celery import Celery
from django.dispatch import receiver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_redis_lock.celery import entering, single_instance_task, task_lock_lost
from django_redis_lock.exceptions import LockError
from tests.settings import server_url
from tests.tools import alive
from tests.tools.celery_worker import events, tell, tell_and_wait
from tests.tools.seccomp import refuse_calls

if "LOCK_TEST_PATIENCE" in os.environ:
    entering.PATIENCE = float(os.environ["LOCK_TEST_PATIENCE"])

REFUSED = "LOCK_TEST_REFUSED_CALLS"
"""The environment variable with an error, and the system calls that fail with it: ``38 434``."""
START_METHOD = "LOCK_TEST_START_METHOD"
"""The environment variable with how a worker starts its children."""

if REFUSED in os.environ:
    refuse_calls(*map(int, os.environ[REFUSED].split()))
if START_METHOD in os.environ:
    billiard.set_start_method(os.environ[START_METHOD], force=True)

UNACKED = {
    "unacked_key": "deaths-unacked",
    "unacked_index_key": "deaths-unacked-index",
    "unacked_mutex_key": "deaths-unacked-mutex",
}
"""Where the broker keeps what was delivered and not acknowledged; apart from other apps."""

app = Celery("deaths", broker=server_url(10), backend=server_url(11), set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=UNACKED,
    worker_prefetch_multiplier=1,
    task_default_queue="deaths",
)


def carry_out(what: str, busy: float = 0.0) -> Any:
    """Be the body of a task: tell of it, then be busy for some seconds or do as the test says.

    It says ``exit`` with a status, ``look`` for what the task knows of its lock, ``threads`` for
    those of its process, or anything.
    """
    with recorded(what):
        if busy:
            tell(what)
            hold_gil(busy)
            return look()
        said = tell_and_wait(what)
        if said.startswith("exit"):
            os._exit(int(said.removeprefix("exit")))
        if said == "threads":
            return [thread.name for thread in threading.enumerate()]
        return look() if said == "look" else said


@contextlib.contextmanager
def recorded(what: str) -> Iterator[None]:
    """Let the test know of the run, and of each other one that is alive when this one begins."""
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
    """Compute in C: no other thread of the process runs meanwhile, and no handler of a signal."""
    end = monotonic() + seconds
    all(map(end.__gt__, iter(monotonic, None)))


def look() -> dict[str, Any]:
    """Return what a running task can know of its lock."""
    lock = single_instance_task.current()
    known = {"fence": lock.fence, "lost": lock.lost}
    try:
        lock.ensure_held()
    except LockError as error:
        return {**known, "error": type(error).__name__}
    return {**known, "error": None}


@receiver(task_lock_lost)
def on_lock_lost(sender: Any, task_id: str, key: str, **kwargs: Any) -> None:
    """Tell the test of a loss."""
    if sender.app is app:
        with events() as client:
            client.rpush(f"lost:{key}", task_id)


@app.task
@single_instance_task(key="{what}")
def work(what: str, busy: float = 0.0) -> Any:
    """Has the lease of the default backend, renewed."""
    return carry_out(what, busy)


@app.task
@single_instance_task(key="{what}", on_conflict="wait")
def successor(what: str) -> Any:
    """Waits for a lock of any of the others, and begins as soon as it is free."""
    return carry_out(what)


@app.task
@single_instance_task(key=lambda what, depth: f"{what}-{depth}-" + 400 * "x")
def deep(what: str, depth: int) -> Any:
    """Holds as many locks as it is deep, with long names."""
    return deep(what, depth - 1) if depth > 1 else carry_out(what)


@app.task(acks_late=True)
@single_instance_task(key="{what}")
def late(what: str) -> Any:
    """Is acknowledged when it has ended."""
    return carry_out(what)


@app.task(acks_late=True, reject_on_worker_lost=True)
@single_instance_task(key="{what}")
def requeued(what: str) -> Any:
    """Is delivered again when its child dies."""
    return carry_out(what)


@app.task(acks_late=True, reject_on_worker_lost=True)
@single_instance_task(key="{what}", scope="queue_and_run")
def requeued_whole(what: str) -> Any:
    """Is delivered again when its child dies, with one lock from its sending to its end."""
    return carry_out(what)


@app.task(acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)
@single_instance_task(key="{what}")
def retried(what: str) -> Any:
    """Is sent again when its child dies."""
    return carry_out(what)


@app.task(acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)
@single_instance_task(key="{what}", scope="queue_and_run")
def retried_whole(what: str) -> Any:
    """Is sent again when its child dies, with one lock from its first sending to its end."""
    return carry_out(what)


@app.task(acks_late=True)
@single_instance_task(key="{what}", using="brief")
def brief(what: str, busy: float = 0.0) -> Any:
    """Has a short lease, renewed."""
    return carry_out(what, busy)


@app.task
@single_instance_task(1, key="{what}")
def fixed(what: str) -> Any:
    """Has a short lease that is not renewed."""
    return carry_out(what)


@app.task
@single_instance_task(key="{what}", using="proxied")
def proxied(what: str) -> Any:
    """Has its lock by way of a proxy."""
    return carry_out(what)


@app.task
@single_instance_task(key="{what}", scope="queue", queue_timeout=60)
def queued(what: str) -> Any:
    """Holds a place while it waits, and another lock while it runs."""
    return carry_out(what)


@app.task
@single_instance_task(key="{what}", scope="queue_and_run", queue_timeout=60)
def whole(what: str, busy: float = 0.0) -> Any:
    """Holds one lock from its sending to its end."""
    return carry_out(what, busy)


@app.task
@single_instance_task(key="{what}", scope="queue", queue_timeout=3)
def impatient(what: str) -> Any:
    """Holds a place while it waits, for three seconds."""
    return carry_out(what)
