"""Tasks that are parked on a lock server of their own, by workers that stop or die at a step."""

from __future__ import annotations

import json
import os
import signal
from time import monotonic
from typing import Any
from uuid import uuid4

from celery.signals import task_failure

from django_redis_lock.celery import outbox, single_instance_task
from django_redis_lock.transport import parking as calls
from tests.apps.celery.app import new_app
from tests.apps.celery.kept import KEPT
from tests.tools.celery_worker import WAIT, events, tell_and_wait

QUEUE_NAME = "parking"
LIMITS = {"one": 1, "three": 3}
"""The keys, and how many tasks of each may run at once."""
STORED, HANDED_OFF, PUBLISHED = STEPS = ("stored", "handed off", "published")
"""Where a worker may be stopped: before a message that it has parked is acknowledged, before one
that is due is published, and before that is known to the lock server."""
CHILD, WORKER, HOLD = "child", "worker", "hold"
"""What may happen there: a child is killed, or all of its worker, or the process waits."""
DUE_AGAIN = 1000
"""Milliseconds after which a message that was to be published is due again."""

app = new_app(
    "parking",
    task_default_queue=QUEUE_NAME,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    task_reject_on_worker_lost=True,
)


def note(what: str, **fields: Any) -> None:
    event = {"what": what, "at": monotonic(), "pid": os.getpid(), "worker": os.getpgid(0), **fields}
    with events() as client:
        client.rpush("history", json.dumps(event))


def reach(step: str) -> None:
    """Do what a test has planned for this step."""
    with events() as client:
        planned = client.lpop(f"plan:{step}")
        if planned == HOLD:
            client.rpush(f"reached:{step}", os.getpid())
            client.blpop([f"go:{step}"], timeout=WAIT)
    if planned == WORKER:
        note("killed worker")
        os.killpg(0, signal.SIGKILL)
    elif planned == CHILD and os.getpid() != os.getpgid(0):
        note("killed")
        os.kill(os.getpid(), signal.SIGKILL)


def work(number: int, key: str, hold: bool = False) -> None:
    run = uuid4().hex
    note("began", run=run, key=key, number=number)
    if hold:
        tell_and_wait(str(number))
    note("ended", run=run)


def define(key: str, **options: Any) -> Any:
    guard = single_instance_task(
        key="{key}", on_conflict="park", concurrency=LIMITS[key], **options
    )
    return app.task(name="-".join([key, *map(str, options.values())]), shared=False)(guard(work))


tasks = {key: define(key, queue_timeout=10) for key in LIMITS}
brief = define("one", queue_timeout=2)
"""Has its place for two seconds when it is its turn."""


def key_of(how: str) -> str:
    """Return a key, or fail or wait as a test says."""
    if how == "fail":
        raise ValueError("no key")
    if how == "wait":
        tell_and_wait("key")
    return "one"


@app.task(shared=False, ignore_result=False)
@single_instance_task(key=lambda number, how: key_of(how), on_conflict="park")
def odd(number: int, how: str) -> None:
    work(number, "one")


@app.task(shared=False)
def plain(number: int) -> None:
    work(number, "three")


@task_failure.connect
def on_failure(sender: Any, args: Any, exception: Exception, **kwargs: Any) -> None:
    """Tell that a task failed, as one does while the lock server can't be reached."""
    if sender.app is app:
        note("failed", number=args[0], error=repr(exception))


class Told:
    """A producer that reaches a step when it has published."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer

    def publish(self, *args: Any, **options: Any) -> None:
        self.producer.publish(*args, **options)
        note(PUBLISHED, id=options["headers"]["id"])
        reach(PUBLISHED)


def stop_at_steps() -> None:
    """Let what parks and publishes in this process reach the steps."""
    park, publish, opened = outbox.park, outbox.Publisher._publish, outbox.Publisher._open

    def parks(run: Any, *args: Any) -> bool:
        parked = park(run, *args)
        if parked:
            note(STORED, id=run.task_id)
            reach(STORED)
        return parked

    def publishes(self: Any, *args: Any) -> None:
        reach(HANDED_OFF)
        publish(self, *args)

    outbox.park = parks
    outbox.Publisher._publish = publishes  # type: ignore[method-assign]
    outbox.Publisher._open = lambda self: Told(opened(self))  # type: ignore[method-assign]
    calls.TAKEN_ON = DUE_AGAIN


if KEPT in os.environ:
    stop_at_steps()
