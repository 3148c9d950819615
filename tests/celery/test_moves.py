"""Guarded tasks that run under another key or with other options than they were sent with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import states
from celery.result import AsyncResult
from django.db import transaction

from django_redis_lock import locks
from tests.apps.celery import moves as tasks
from tests.apps.celery.app import (
    NOWHERE,
    QUEUE,
    QUEUE_AND_RUN,
    QUEUE_NAME,
    SCOPES,
    WAITING,
    app,
)
from tests.apps.celery.moves import CHANGES, before
from tests.settings import server_url
from tests.tools import eventually
from tests.tools.celery_worker import (
    WAIT,
    Worker,
    go,
    held,
    ran,
    started,
)

# The result backend of Celery, which tests store a state in.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")


def holder_id(name: str) -> str | None:
    """Return the id of the task that has a lock."""
    holder = locks["default"].holder(name)
    return holder.task_id if holder else None


def nothing_held(what: str) -> None:
    """Wait until no lock about something is held on any alias."""
    for alias in ("default", "url"):
        eventually(
            lambda alias=alias: not list(locks[alias].holders(pattern=f"*{what}*")), "all free"
        )


# Another key.


@pytest.mark.parametrize("how", ["retry", "replace"])
@pytest.mark.parametrize("scope", SCOPES)
def test_task_that_goes_on_under_another_key_has_the_lock_of_that_key(
    client: redis.Redis, what: str, scope: str, how: str
) -> None:
    """The old key is free when its run has ended, and the new one is held in its place."""
    task, old, new = tasks.moving[scope], f"old-{what}", f"new-{what}"
    result = task.delay(old, new, how)
    started(client, new)
    eventually(lambda: held(what) == [f"moving:{new}"], "the new key alone")
    assert holder_id(f"moving:{new}") == result.id
    other = task.delay(old)
    started(client, old)
    go(client, new)
    assert result.get(timeout=WAIT) == "go"
    go(client, old)
    assert other.get(timeout=WAIT) == "go"
    nothing_held(what)


@pytest.mark.parametrize("how", ["retry", "replace"])
@pytest.mark.parametrize("scope", SCOPES)
def test_task_that_comes_to_a_key_that_is_held_does_not_run_beside_its_holder(
    client: redis.Redis, what: str, scope: str, how: str
) -> None:
    """It is a duplicate of the run that it meets, and waits for it or is skipped."""
    task, old, new = tasks.moving[scope], f"old-{what}", f"new-{what}"
    running = task.delay(new)
    started(client, new)
    result = task.delay(old, new, how)
    if scope == QUEUE:
        eventually(lambda: held(what) == [f"moving:{new}", f"moving:{new}:queued"], "its place")
        go(client, new, times=2)
        assert result.get(timeout=WAIT) == "go"
    else:
        assert result.get(timeout=WAIT)["holder"]["task_id"] == running.id
        go(client, new)
    assert running.get(timeout=WAIT) == "go"
    assert set(ran(client, new)) == {"1"}
    nothing_held(what)


@pytest.mark.parametrize("second", SCOPES)
@pytest.mark.parametrize("first", SCOPES)
def test_task_that_is_replaced_by_another_of_its_key_is_carried_on(
    client: redis.Redis, worker: Worker, what: str, first: str, second: str
) -> None:
    """What replaces a task is no duplicate of it."""
    result = tasks.moving[first].delay(what, what, second)
    assert result.get(timeout=WAIT) == "replaced"
    assert ran(client, what) == ["1", "1"]
    assert not worker.lines(f"[{result.id}] takes over")
    nothing_held(what)


# Other options.


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=lambda kind: kind)
def test_message_that_was_sent_with_other_options_runs_once(
    client: redis.Redis, worker: Worker, what: str, old: str, new: str
) -> None:
    """A message that waits while the options of its task change is neither lost nor stuck."""
    name = tasks.changed(old, new)
    result = before.tasks[name].delay(what)
    started(client, what)
    key = app.tasks[name].single_instance_guard.key(app.tasks[name], (what,), {})
    duplicate = app.tasks[name].delay(what)
    limit = tasks.KINDS[new].get("concurrency", 1)
    using = tasks.KINDS[new].get("using", "default")
    running = list(locks[using].holders(pattern=f"{key}*"))
    assert result.id in {holder.task_id for holder in running}
    go(client, what, times=2)
    assert result.get(timeout=WAIT) == "go"
    duplicate.get(timeout=WAIT)
    assert all(int(inside) <= limit for inside in ran(client, what))
    nothing_held(what)
    assert not worker.lines(f"[{result.id}] waits")


def test_message_of_a_renamed_task_runs_once(client: redis.Redis, worker: Worker) -> None:
    """A task that is registered under its old name as well has the key of its new one."""
    result = tasks.old_name.delay("renamed")
    started(client, "renamed")
    assert held("-name") == ["new-name"]
    go(client, "renamed")
    assert result.get(timeout=WAIT) == "go"
    eventually(lambda: not held("-name"), "both names free")


@pytest.mark.parametrize("scope", WAITING)
def test_message_whose_key_can_not_be_made_any_more_leaves_no_place(
    client: redis.Redis, worker: Worker, what: str, scope: str
) -> None:
    """It fails, and its place is free."""
    result = before.tasks[f"broken-{scope}"].delay(what)
    with pytest.raises(LookupError):
        result.get(timeout=WAIT)
    nothing_held(what)


# Delivered again.


@pytest.fixture
def sent(client: redis.Redis) -> Iterator[_Sent]:
    """A message in a test's hands."""
    with redis.Redis.from_url(server_url(10)) as broker:
        broker.delete(NOWHERE)
        yield _Sent(broker)
        broker.delete(NOWHERE)


class _Sent:
    """A message in a queue without a worker, which a test delivers as often as it likes."""

    def __init__(self, broker: redis.Redis) -> None:
        self._broker = broker

    def send(self, task: Any, *args: Any) -> AsyncResult:
        """Send a task, and keep its message."""
        result = task.apply_async(args, queue=NOWHERE)
        (self._message,) = map(json.loads, self._broker.lrange(NOWHERE, 0, -1))
        return result

    def deliver(self, again: bool = False) -> None:
        """Put the message into the worker's queue."""
        message = self._message
        if again:
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
        self._broker.lpush(QUEUE_NAME, json.dumps(message))


def ignored(worker: Worker, result: AsyncResult) -> None:
    """Wait until a delivery of a task has been dropped."""
    text = f"[{result.id}] ignored"
    eventually(lambda: worker.lines(text), "the delivery to be dropped")


@pytest.mark.parametrize("scope", SCOPES)
def test_delivery_after_a_success_is_dropped(
    client: redis.Redis, worker: Worker, what: str, sent: _Sent, scope: str
) -> None:
    """A message that comes again when its task has succeeded finds the lock free, and is done."""
    result = sent.send(tasks.plain[scope], what)
    sent.deliver()
    go(client, what)
    assert result.get(timeout=WAIT) == "go"
    sent.deliver(again=True)
    ignored(worker, result)
    assert ran(client, what) == ["1"]
    nothing_held(what)


@pytest.mark.parametrize("scope", SCOPES)
def test_delivery_after_a_failure_runs(
    client: redis.Redis, worker: Worker, what: str, sent: _Sent, scope: str
) -> None:
    """A message that comes again when no success is stored is carried out."""
    result = sent.send(tasks.plain[scope], what)
    app.backend.mark_as_failure(result.id, RuntimeError("lost"))
    sent.deliver(again=True)
    started(client, what)
    go(client, what)
    eventually(lambda: AsyncResult(result.id, app=app).state == states.SUCCESS, "success")
    nothing_held(what)


def test_delivery_after_a_success_does_not_take_the_result_of_a_duplicate(
    client: redis.Redis, worker: Worker, what: str, sent: _Sent
) -> None:
    """Where another instance runs meanwhile, the stored success stays what it is."""
    result = sent.send(tasks.raising, what)
    sent.deliver()
    go(client, what)
    assert result.get(timeout=WAIT) == "go"
    started(client, what)
    other = tasks.raising.delay(what)
    started(client, what)
    sent.deliver(again=True)
    ignored(worker, result)
    go(client, what)
    assert other.get(timeout=WAIT) == "go"
    assert AsyncResult(result.id, app=app).get() == "go"


def test_delivery_of_a_task_whose_retry_waits_is_dropped(
    client: redis.Redis, worker: Worker, what: str, sent: _Sent
) -> None:
    """It would wait for the retry that carries it on."""
    result = sent.send(tasks.later, what)
    sent.deliver()
    eventually(lambda: holder_id(f"later:{what}") and result.state == states.RETRY, "the retry")
    sent.deliver(again=True)
    ignored(worker, result)
    assert ran(client, what) == ["1"]
    assert holder_id(f"later:{what}") == result.id
    app.control.revoke(result.id)
    locks["default"].force_release(f"later:{what}")


def test_delivery_of_a_task_that_was_sent_anew_by_its_name_is_kept(
    client: redis.Redis, worker: Worker, what: str
) -> None:
    """Who sends a purged message once more knows of no ticket; it waits for its own place.

    Not in the worker, which the message that has the place may need.
    """
    task = tasks.plain[QUEUE_AND_RUN]
    purged = task.apply_async((what,), queue=NOWHERE)
    result = app.send_task(task.name, (what,), task_id=purged.id)
    eventually(lambda: worker.lines(f"[{result.id}] comes again"), "the delivery to go back")
    locks["default"].force_release(f"plain:{what}")
    started(client, what)
    go(client, what)
    assert result.get(timeout=WAIT) == "go"
    nothing_held(what)


# Places of messages that won't come.


store: dict[str, Callable[[str], Any]] = {
    "nothing": lambda task_id: None,
    "revoked": app.backend.mark_as_revoked,
    "failure": lambda task_id: app.backend.mark_as_failure(task_id, RuntimeError("gone")),
    "retry": lambda task_id: app.backend.mark_as_retry(task_id, RuntimeError("again")),
    "started": app.backend.mark_as_started,
}


@pytest.mark.parametrize("state", ["revoked", "failure"])
@pytest.mark.parametrize("scope", WAITING)
def test_place_of_a_task_that_has_ended_is_taken(
    client: redis.Redis, worker: Worker, what: str, scope: str, state: str
) -> None:
    """A call gets no id of a task of which it is stored that it won't run."""
    task = tasks.plain[scope]
    gone = task.apply_async((what,), queue=NOWHERE)
    store[state](gone.id)
    result = task.delay(what)
    assert result.id != gone.id
    started(client, what)
    go(client, what)
    assert result.get(timeout=WAIT) == "go"
    nothing_held(what)


@pytest.mark.parametrize("state", ["nothing", "retry", "started"])
@pytest.mark.parametrize("scope", WAITING)
def test_place_of_a_task_that_may_come_is_kept(
    client: redis.Redis, what: str, scope: str, state: str
) -> None:
    """What is stored of a task that waits says nothing against its coming."""
    task = tasks.plain[scope]
    waiting = task.apply_async((what,), queue=NOWHERE)
    store[state](waiting.id)
    assert task.delay(what).id == waiting.id
    for name in held(what):
        locks["default"].force_release(name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("task", tasks.put_off.values(), ids=tasks.put_off)
def test_base_class_that_sends_after_the_transaction_takes_the_place_then(
    client: redis.Redis, what: str, task: Any
) -> None:
    """A transaction that is rolled back takes none, and of several calls one is sent."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        task.delay(what)
        raise ZeroDivisionError
    assert not held(what)
    with transaction.atomic():
        for _ in range(2):
            task.delay(what)
        assert not held(what)
    started(client, what)
    go(client, what, times=2)
    nothing_held(what)
    if task.single_instance_guard.options.scope == QUEUE_AND_RUN:
        assert ran(client, what) == ["1"]
