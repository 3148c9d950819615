"""The guard where messages come twice, are revoked, expire or vanish."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from kombu import Connection

from django_redis_lock import lock, locks
from django_redis_lock.celery.message import HEADER
from tests.apps.celery import deaths as tasks
from tests.apps.celery.app import NOWHERE, QUEUE_NAME, app
from tests.settings import server_url
from tests.tools import eventually
from tests.tools.celery_worker import (
    WAIT,
    Worker,
    free,
    go,
    started,
)
from tests.workers.conftest import (
    AT_ONCE,
    BUSY,
    DUE,
    acknowledged,
    check_one_at_a_time,
    deliver_again,
    holder_of,
    succeeded,
    waiting,
)


def test_message_delivered_twice_is_dropped_when_the_first_succeeds(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """Deliveries of a running task wait for its end, and then do nothing."""
    result = tasks.late.delay(name)
    started(client, name)
    for _ in range(2):
        deliver_again(worker, result)
    go(client, name)
    assert result.get(timeout=WAIT) == "go"
    acknowledged()
    check_one_at_a_time(client, name, runs=1)
    free(name)


@pytest.mark.parametrize("waits", [1, 2])
def test_message_delivered_twice_runs_when_the_first_dies(
    client: redis.Redis, worker: Worker, name: str, waits: int
) -> None:
    """A delivery that waits for a run that dies, once or again and again, carries the task out."""
    result = tasks.late.delay(name)
    pid = started(client, name)
    deliver_again(worker, result)
    if waits == 2:  # in between it lets other tasks run
        eventually(lambda: len(worker.lines(f"[{result.id}] waits: lock")) == 2, "it came again")
        assert len(worker.lines(f"[{result.id}] received")) == 3
    os.kill(pid, signal.SIGKILL)
    started(client, name)
    go(client, name)
    succeeded(worker, result)
    acknowledged()
    check_one_at_a_time(client, name, runs=2)


def revoke(*results: Any, **options: Any) -> None:
    """Revoke tasks, and wait for the worker's word that it knows."""
    ids = [result.id for result in results]
    assert app.control.revoke(ids, reply=True, limit=1, timeout=WAIT, **options)


def test_lock_of_a_message_that_is_revoked_or_expires_is_freed(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A message that never runs frees the lock that was taken when it was sent, and no other."""
    places = {
        f"{name}-{ending}-{task.name}": (ending, task)
        for ending in ("revoked", "expired", "broken")
        for task in (tasks.queued, tasks.whole)
    }
    results, named = {}, {}
    for each, (ending, task) in places.items():
        options = {"countdown": DUE, **({"expires": 0.5} if ending == "expired" else {})}
        results[each] = task.apply_async((each,), **options)
        named[each] = f"{each}~~queued:{task.name}" if task is tasks.queued else each
        assert holder_of(named[each]).task_id == results[each].id
    broken = {each for each, (ending, _) in places.items() if ending == "broken"}
    with contextlib.ExitStack() as stack:
        for each in broken:
            locks["default"].force_release(named[each])
        taken = [stack.enter_context(lock(named[each], blocking=False)) for each in broken]
        revoke(*(results[each] for each, (ending, _) in places.items() if ending != "expired"))
        sent = time.monotonic()
        for each in places.keys() - broken:
            free(named[each])
        assert time.monotonic() - sent < DUE + AT_ONCE
        for each in places:
            with pytest.raises(TaskRevokedError):
                results[each].get(timeout=WAIT)
        for ours in taken:
            ours.ensure_held()
    for each in places:
        check_one_at_a_time(client, each, runs=0)


@pytest.mark.parametrize("change", [{"task": "renamed"}, {"eta": "some day"}], ids=repr)
@pytest.mark.parametrize("task", [tasks.queued, tasks.whole], ids=["queue", "queue_and_run"])
def test_place_of_a_message_that_the_worker_refuses_is_freed(
    client: redis.Redis, worker: Worker, name: str, task: Any, change: dict[str, str]
) -> None:
    """A message for an unknown task, or one that is invalid; the next call runs."""
    result = task.apply_async((name,), queue=NOWHERE)
    with redis.Redis.from_url(server_url(10)) as broker:
        message = json.loads(broker.lpop(NOWHERE))
        message["headers"] |= change
        broker.lpush(QUEUE_NAME, json.dumps(message))
    free(f"{name}~~queued:{task.name}" if task is tasks.queued else name)
    again = task.delay(name)
    assert again.id != result.id
    go(client, name)
    assert again.get(timeout=WAIT) == "go"


@pytest.mark.parametrize("named", [{"using": "elsewhere"}, {"lock": 7}, {"ticket": ["x"]}])
def test_garbage_in_the_header_does_no_harm(
    client: redis.Redis, worker: Worker, name: str, named: dict[str, Any]
) -> None:
    """What anybody may write into a message stops neither the worker nor the freeing of places."""
    task_id = f"{name}-garbage"
    slip = {"task_id": task_id, "lock": name, "ticket": "0" * 16, "using": "default", **named}
    app.send_task("renamed", task_id=task_id, headers={HEADER: slip})
    if "using" in named:
        eventually(lambda: worker.lines(f"Message {task_id} was dropped"), "the line")
    result = tasks.queued.delay(name)
    go(client, name)
    assert result.get(timeout=WAIT) == "go"
    free(f"{name}~~queued:{tasks.queued.name}")


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_lock_of_a_run_that_is_revoked_is_freed_after_it_ended(
    client: redis.Redis, worker: Worker, name: str, how: str
) -> None:
    """Celery tells of the revocation before the child has died; the lock waits for that."""
    busy, idle = f"{name}-busy", f"{name}-idle"
    runs = {busy: tasks.whole.delay(busy, BUSY), idle: tasks.whole.delay(idle)}
    pids = {each: started(client, each) for each in runs}
    successors = {each: tasks.successor.delay(each) for each in runs}
    for each in runs:
        waiting(each)
    revoke(*runs.values(), terminate=True, signal=how)
    revoked = time.monotonic()
    for each in runs:
        assert started(client, each) != pids[each]
        go(client, each)
        assert successors[each].get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=2)
    assert time.monotonic() - revoked < BUSY + AT_ONCE


def test_lock_of_a_purged_message_is_bounded_and_can_be_broken(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """A message that vanished holds its place for its lease, or until a forced release."""
    queue = f"queue-{name}"
    short, long, expiring = f"{name}-short", f"{name}-long", f"{name}-expiring"
    tasks.queued.apply_async((long,), queue=queue)
    tasks.queued.apply_async((expiring,), queue=queue, expires=10)
    with Connection(server_url(10)) as connection:
        assert connection.default_channel.queue_purge(queue) == 2
    assert 10 < holder_of(f"{expiring}~~queued:{tasks.queued.name}").ttl <= 15
    assert 30 < holder_of(f"{long}~~queued:{tasks.queued.name}").ttl <= 60
    lost = holder_of(f"{long}~~queued:{tasks.queued.name}")
    assert tasks.queued.delay(long).id == lost.task_id
    assert (
        locks["default"].force_release(f"{long}~~queued:{tasks.queued.name}", lost.token_id)
        is not None
    )
    tasks.impatient.apply_async((short,), queue=queue)
    until = time.monotonic() + holder_of(f"{short}~~queued:{tasks.impatient.name}").ttl
    with lock(f"{short}~~queued:{tasks.impatient.name}", blocking_timeout=WAIT):
        assert time.monotonic() - until < AT_ONCE
    with Connection(server_url(10)) as connection:
        assert connection.default_channel.queue_purge(queue) == 1
    for each, task in ((short, tasks.impatient), (long, tasks.queued)):
        result = task.delay(each)
        go(client, each)
        assert result.get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=1)
