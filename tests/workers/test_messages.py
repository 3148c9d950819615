"""The guard where messages come twice, are revoked, expire, vanish or are dropped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError

from django_redis_lock import lock, locks
from tests.apps.celery import deaths as tasks
from tests.apps.celery.app import NOWHERE, QUEUE_NAME, app
from tests.settings import server_url
from tests.tools import eventually, waiters
from tests.tools.celery_worker import WAIT, Worker, free, go, started
from tests.workers.conftest import (
    BUSY,
    DUE,
    acknowledged,
    check_one_at_a_time,
    deliver_again,
    holder_of,
    succeeded,
    waiting,
)

both_scopes = pytest.mark.parametrize("task", [tasks.queued, tasks.whole], ids=["queue", "whole"])


def place_of(task: Any, what: str) -> str:
    return what if task is tasks.whole else f"{what}~~queued:{task.name}"


def runs_anew(client: redis.Redis, task: Any, what: str, dropped: Any) -> None:
    """Check that a new call gets a task of its own, which runs, once the place is free."""
    free(place_of(task, what))
    result = task.delay(what)
    assert result.id != dropped.id
    started(client, what)
    go(client, what)
    assert result.get(timeout=WAIT) == "go"
    check_one_at_a_time(client, what, runs=1)


# Messages that are delivered twice.


def test_message_delivered_twice_is_dropped_when_the_first_succeeds(
    client: redis.Redis, worker: Worker, name: str
) -> None:
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
        eventually(
            lambda: len(worker.lines(f"[{result.id}] began to wait: lock")) == 2, "it came again"
        )
        assert len(worker.lines(f"[{result.id}] received")) == 3
    os.kill(pid, signal.SIGKILL)
    started(client, name)
    go(client, name)
    succeeded(worker, result)
    acknowledged()
    check_one_at_a_time(client, name, runs=2)


# Messages that are revoked, expire, are purged or are refused.


def revoke(*results: Any, **options: Any) -> None:
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
        named[each] = place_of(task, each)
        assert holder_of(named[each]).task_id == results[each].id
    broken = {each for each, (ending, _) in places.items() if ending == "broken"}
    with contextlib.ExitStack() as stack:
        for each in broken:
            locks["default"].force_release(named[each])
        taken = [stack.enter_context(lock(named[each], blocking=False)) for each in broken]
        revoke(*(results[each] for each, (ending, _) in places.items() if ending != "expired"))
        for each in places.keys() - broken:
            free(named[each])
        for each in places:
            with pytest.raises(TaskRevokedError):
                results[each].get(timeout=WAIT)
        for ours in taken:
            ours.ensure_held()
    for each in places:
        check_one_at_a_time(client, each, runs=0)


@both_scopes
def test_lock_of_a_message_that_was_revoked_before_it_came_is_freed(
    client: redis.Redis, worker: Worker, name: str, task: Any
) -> None:
    """The worker knows of the revocation when it gets the message."""
    task_id = str(uuid.uuid4())
    assert app.control.revoke([task_id], reply=True, limit=1, timeout=WAIT)
    runs_anew(client, task, name, task.apply_async((name,), task_id=task_id))


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
    for each in runs:
        assert started(client, each) != pids[each]
        go(client, each)
        assert successors[each].get(timeout=WAIT) == "go"
        check_one_at_a_time(client, each, runs=2)


def test_place_of_a_run_that_is_revoked_while_it_waits_is_freed(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    with lock(name):
        result = tasks.patient.delay(name)
        eventually(lambda: waiters(name) == 1, "the run in the queue")
        revoke(result, terminate=True, signal="SIGKILL")
        free(place_of(tasks.patient, name))
    runs_anew(client, tasks.patient, name, result)


def send_changed(task: Any, what: str, /, **headers: Any) -> Any:
    result = task.apply_async((what,), queue=NOWHERE)
    with redis.Redis.from_url(server_url(10)) as broker:
        message = json.loads(broker.lpop(NOWHERE))
        message["headers"].update(headers)
        broker.lpush(QUEUE_NAME, json.dumps(message))
    return result


@both_scopes
@pytest.mark.parametrize("headers", [{"task": "renamed"}, {"eta": "some day"}])
def test_place_of_a_message_that_the_worker_refuses_is_freed(
    client: redis.Redis, worker: Worker, name: str, task: Any, headers: dict[str, str]
) -> None:
    """The next call after one of an unknown task, or with an invalid header, gets its own task."""
    runs_anew(client, task, name, send_changed(task, name, **headers))
