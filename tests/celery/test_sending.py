"""What the sender of a guarded task does about a message that waits already, without a worker."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import states
from celery.exceptions import Retry

from django_redis_lock import lock, locks
from django_redis_lock.celery import TaskAlreadyRunning, skipped
from django_redis_lock.celery.key_locks import HEADER, QUEUED, MessageHeader, TaskLock
from django_redis_lock.celery.options import SCOPES
from django_redis_lock.celery.sending import EXPIRY_SLACK
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.protocol.records import Holder
from tests.apps.celery.app import WAITING
from tests.celery.consumer import (
    Consumer,
    body,
    header_of,
    held,
    id_of,
    is_free,
    key_locks,
    lines,
    unavailable,
)


def place_of(task: Any, scope: str) -> str:
    """Return the name of the lock that a waiting message holds."""
    return key_locks(task).reservations[0] if scope == "queue" else str(task.app.main)


def holder_of(task: Any, scope: str) -> Holder:
    holder = locks["locmem"].holder(place_of(task, scope))
    assert holder is not None
    return holder


# The place in the queue.


@pytest.mark.parametrize("scope", WAITING)
def test_message_takes_its_place(consumer: Consumer, scope: str) -> None:
    """And says by which ticket its run takes it over, or gives it up."""
    task = consumer.task(body, scope=scope)
    message = consumer.send(task, headers={"theirs": 1})
    holder, header = holder_of(task, scope), header_of(message)
    assert holder.task_id == id_of(message)
    assert holder.marks["state"] == QUEUED
    assert holder.fence is not None
    assert header == MessageHeader(
        id_of(message), lock=holder.name, ticket=holder.token_id, using="locmem"
    )
    assert message.headers["theirs"] == 1
    assert consumer.deliver(message) == "ran"
    assert not list(locks["locmem"].holders(pattern=f"{task.app.main}*"))


@pytest.mark.parametrize("scope", WAITING)
@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"expires": 30}, 30 + EXPIRY_SLACK),
        ({"countdown": 50, "expires": 1000}, 150),
        ({"eta": 50}, 150),
        ({"task": {"expires": 30}}, 30 + EXPIRY_SLACK),
        ({"task": {"expires": 30}, "expires": 1000}, 100),
    ],
)
def test_place_is_kept_while_the_message_can_wait(
    consumer: Consumer, scope: str, options: dict[str, Any], seconds: float
) -> None:
    options = dict(options)
    task = consumer.task(body, options.pop("task", {}), scope=scope, queue_timeout=100)
    if "eta" in options:
        options = {"eta": datetime.now(UTC) + timedelta(seconds=options["eta"])}
    consumer.send(task, **options)
    ttl = holder_of(task, scope).ttl
    assert ttl is not None
    assert seconds - 5 < ttl <= seconds


# Duplicates.


@pytest.mark.parametrize(
    ("scope", "policy"), [("queue", "skip"), ("queue_and_run", "skip"), ("queue", "raise")]
)
def test_duplicate_is_not_sent(
    consumer: Consumer, log: pytest.LogCaptureFixture, scope: str, policy: str
) -> None:
    """The result is that of the message that waits, or an error that names it."""
    task = consumer.task(body, scope=scope, on_conflict={"queue": policy})
    first = consumer.send(task)
    holder = holder_of(task, scope)
    if policy == "skip":
        result = task.delay()
        assert (result.id, result.backend) == (id_of(first), task.backend)
    else:
        with pytest.raises(TaskAlreadyRunning) as caught:
            task.delay()
        error = caught.value
        why = f"lock {task.app.main!r} is held by {holder}."
        assert str(error) == str(copy.copy(error)) == f"Task {task.name} was not sent: {why}"
        assert (error.name, error.holder and error.holder["task_id"]) == (
            *(task.app.main, id_of(first)),
        )
    assert consumer.message() is None
    assert holder_of(task, scope).token_id == holder.token_id
    assert skipped[task.name] == 1
    ((kind, news),) = consumer.notified
    assert (kind, news["policy"]) == ("skipped", policy)
    assert news["task_id"] not in (None, id_of(first))
    assert (news["key"], news["holder"].token_id) == (task.app.main, holder.token_id)
    said = "skipped" if policy == "skip" else "refused"
    text = f"{said}: lock {task.app.main!r} is held by {holder}"
    assert lines(log) == [f"Task {task.name}[{news['task_id']}] {text}"]


@pytest.mark.parametrize("state", sorted(states.READY_STATES))
def test_place_of_a_task_that_has_ended_is_taken_over(consumer: Consumer, state: str) -> None:
    """A message that was revoked, expired or vanished may have left it."""
    task = consumer.task(body, scope="queue")
    ended = consumer.send(task)
    result = KeyError(state) if state in states.EXCEPTION_STATES else state
    task.backend.store_result(id_of(ended), result, state)
    message = consumer.send(task)
    assert message is not None
    assert holder_of(task, "queue").task_id == id_of(message)


def test_lock_of_a_run_is_not_taken_over(consumer: Consumer) -> None:
    """Its task may have stored its result before it has ended."""
    task = consumer.task(body, scope="queue_and_run")
    running = held(task, "running")
    task.backend.mark_as_done("running", "its result")
    assert task.delay().id == "running"
    running.ensure_held()


@pytest.mark.parametrize("yesterday", [True, False])
@pytest.mark.parametrize("scope", WAITING)
def test_place_is_not_ended_by_an_earlier_task_of_the_same_id(
    consumer: Consumer, scope: str, yesterday: bool
) -> None:
    """A result that is older than the message which waits says nothing of it."""
    own_id = f"job-{consumer.app.main}"
    task = consumer.task(body, scope=scope)
    if yesterday:
        task.backend.mark_as_done(own_id, "its result")
    waiting = consumer.send(task, task_id=own_id)
    if not yesterday:
        task.backend.mark_as_done(own_id, "its result")
    assert (task.delay().id == own_id) is yesterday
    assert id_of(waiting) == own_id


@pytest.mark.parametrize("policy", ["skip", "raise", "function"])
@pytest.mark.parametrize("scope", WAITING)
def test_duplicate_with_the_id_of_the_waiting_task_is_not_sent(
    consumer: Consumer, scope: str, policy: str
) -> None:
    """Who waits for a result of this id gets that of the task that waits."""
    on_conflict = (lambda conflict: "decided") if policy == "function" else policy
    own_id = f"job-{consumer.app.main}"
    task = consumer.task(body, scope=scope, on_conflict={"queue": on_conflict})
    message = consumer.send(task, task_id=own_id)
    if policy == "raise":
        with pytest.raises(TaskAlreadyRunning):
            task.apply_async(task_id=own_id)
    else:
        result = task.apply_async(task_id=own_id)
        assert (result if policy == "function" else result.id) in ("decided", own_id)
    assert consumer.message() is None
    assert consumer.deliver(message) == "ran"
    assert task.AsyncResult(own_id).result == "ran"


@pytest.mark.parametrize("scope", WAITING)
def test_duplicate_that_goes_on_is_sent_under_the_id_of_the_waiting_task(
    consumer: Consumer, scope: str
) -> None:
    """What is linked to it is called, with the answer of the duplicate."""
    own_id = f"job-{consumer.app.main}"
    task = consumer.task(body, scope=scope)

    @consumer.app.task(name=f"{task.name}-told")
    def told(answer: Any) -> bool:
        return bool(answer["skipped"])

    waiting = consumer.send(task, task_id=own_id)
    duplicate = consumer.send(task, task_id=own_id, link=told.s())
    assert header_of(duplicate).duplicate_of
    consumer.deliver(duplicate)
    assert consumer.deliver() is True
    assert consumer.deliver(waiting) == "ran"
    assert task.AsyncResult(own_id).result == "ran"


# Who waits for a result of this very id.

AWAITED = {
    "link": {"link": []},
    "link_error": {"link_error": []},
    "chain": {"chain": []},
    "group": {"group_id": "group"},
    "id": {"task_id": "second"},
    "chord": {"chord": {}},
}


@pytest.mark.parametrize("how", AWAITED)
@pytest.mark.parametrize("policy", ["skip", "raise", "function"])
def test_awaited_duplicate_is_sent_for_its_result(
    consumer: Consumer, how: str, policy: str
) -> None:
    """What waits would wait forever, or take another's result for its own."""
    on_conflict = (lambda conflict: "decided") if policy == "function" else policy
    task = consumer.task(body, scope="queue", on_conflict={"queue": on_conflict})
    after = consumer.app.task(name=f"{task.name}-after")(body).si()
    first = consumer.send(task)
    described = holder_of(task, "queue")
    options = {
        key: [after] if value == [] else after if value == {} else value
        for key, value in AWAITED[how].items()
    }
    result = task.apply_async(**options)
    message = consumer.message()
    assert result.id == id_of(message) != id_of(first)
    duplicate_of = header_of(message).duplicate_of
    assert duplicate_of is not None
    assert duplicate_of["task_id"] == id_of(first)
    assert duplicate_of["pid"] == described.pid
    sent = header_of(message).sent
    assert header_of(message) == MessageHeader(id_of(message), duplicate_of=duplicate_of, sent=sent)
    assert bool(sent) is (how == "id")
    assert consumer.kinds() == []


def test_duplicate_of_no_task_is_sent_for_its_result(consumer: Consumer) -> None:
    """Another program has the lock; there is no result to return instead."""
    task = consumer.task(body, scope="queue")
    assert lock(place_of(task, "queue"), using="locmem").acquire()
    result = task.delay()
    message = consumer.message()
    assert result.id == id_of(message)
    duplicate_of = header_of(message).duplicate_of
    assert duplicate_of is not None
    assert duplicate_of["task_id"] is None
    assert duplicate_of["ttl"] > 0
    assert consumer.deliver(message)["holder"]["ttl"] is None  # as it has changed since


# Messages that need no place, or are sent by a run in its own.


@pytest.mark.parametrize("scope", WAITING)
@pytest.mark.parametrize(
    "header", [{}, MessageHeader("id", attempts=3).as_headers()], ids=["none", "own"]
)
def test_message_that_had_a_place_needs_none(
    consumer: Consumer, scope: str, header: dict[str, Any]
) -> None:
    """It says so itself, or is a retry."""
    task = consumer.task(body, scope=scope)
    other = key_locks(task, "other").handle(place_of(task, scope), 60, state=QUEUED)
    assert other.acquire(blocking=False)
    options = {"headers": header} if header else {"retries": 1}
    message = consumer.send(task, task_id="id", **options)
    assert message.headers.get(HEADER) == header.get(HEADER)
    other.ensure_held()


@pytest.mark.parametrize("scope", WAITING)
def test_header_of_another_task_counts_for_nothing(consumer: Consumer, scope: str) -> None:
    """Celery copies the headers of a run to what it sends."""
    task = consumer.task(body, scope=scope)
    message = consumer.send(task, headers=MessageHeader("another").as_headers())
    assert header_of(message).lock == place_of(task, scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_retry_follows_its_run(consumer: Consumer, scope: str) -> None:
    """It takes the lock over if that is the one of its scope, and is still the same task."""
    fences: list[int] = []

    def work(self: Any) -> str:
        fences.append(self.lock.fence)
        if self.request.retries:
            return "ran"
        raise self.retry(countdown=50)

    given = {} if scope == "run" else {"queue_timeout": 100}
    task = consumer.task(work, {"bind": True}, scope=scope, **given)
    message = consumer.send(task, task_id=f"job-{consumer.app.main}")
    sent = header_of(message).sent
    assert isinstance(consumer.deliver(message), Retry)
    again = consumer.message()
    header = MessageHeader(id_of(message), follows=fences[0], sent=sent)
    if scope == "queue_and_run":
        holder = holder_of(task, scope)
        header = replace(header, lock=holder.name, ticket=holder.token_id, using="locmem")
        assert holder.marks["state"] == QUEUED
        assert holder.ttl is not None
        assert 145 < holder.ttl <= 150
    else:
        assert is_free(task)
    assert header_of(again) == header
    assert consumer.deliver(again) == "ran"
    assert fences[1] > fences[0]
    assert is_free(task)
    assert consumer.kinds() == []


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("how", ["send", "retry", "replace"])
def test_run_sends_itself_with_another_key(consumer: Consumer, how: str, scope: str) -> None:
    """That message takes a place of its own, if its scope has one, and nothing of its run's."""
    name, seen = consumer.app.main, []

    def work(self: Any, number: int) -> str:
        seen.append(self.lock.name)
        if number == 1 and how == "send":
            self.apply_async((2,), task_id=self.request.id)
        elif number == 1:
            raise self.retry(args=(2,)) if how == "retry" else self.replace(self.s(2))
        return "ran"

    task = consumer.task(work, {"bind": True}, key=name + ":{number}", scope=scope)
    message = consumer.send(task, 1)
    consumer.deliver(message)
    again = consumer.message()
    names = {"queue": f"{name}:2~~queued:{task.name}", "queue_and_run": f"{name}:2"}
    reservation = names.get(scope, "")
    assert id_of(again) == id_of(message)
    assert header_of(again).lock == reservation
    assert header_of(again).follows == 0
    taken = [each.name for each in locks["locmem"].holders(pattern=f"{name}*")]
    assert taken == ([reservation] if reservation else [])
    assert consumer.deliver(again) == "ran"
    assert seen == [f"{name}:1", f"{name}:2"]
    assert not list(locks["locmem"].holders(pattern=f"{name}*"))


@pytest.mark.parametrize("how", ["lost", "unguarded"])
def test_run_without_its_lock_has_nothing_to_hand_over(
    consumer: Consumer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: Any) -> str:
        if self.request.retries:
            return "ran"
        if how == "lost":
            locks["locmem"].force_release(consumer.app.main)
            self.lock.lease.deadline = 0.0
        raise self.retry(countdown=1)

    task = consumer.task(work, {"bind": True}, scope="queue_and_run", on_unavailable="run")
    message = consumer.send(task)
    if how == "unguarded":
        monkeypatch.setattr(TaskLock, "acquire", unavailable)
        monkeypatch.setattr(TaskLock, "take_over", unavailable)
    assert isinstance(consumer.deliver(message), Retry)
    header = header_of(consumer.message())
    assert not header.ticket or header.follows == 0


def test_run_with_a_successor_does_not_rest(consumer: Consumer) -> None:
    def work(self: Any) -> str:
        if self.request.retries:
            return "ran"
        raise self.retry(countdown=1)

    task = consumer.task(work, {"bind": True}, at_least_for=60)
    assert isinstance(consumer.deliver(consumer.send(task)), Retry)
    assert is_free(task)
    assert consumer.deliver() == "ran"
    assert not is_free(task)


# When no place can be taken.


@pytest.mark.parametrize("error", [KeyError("key"), LockUnavailable("no server")])
def test_next_task_of_a_chain_is_sent_whatever_happens(
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """The one before has succeeded, and the run meets the error again."""

    def make_key() -> str:
        raise error

    task = consumer.task(body, scope="queue", key=make_key)
    first = consumer.app.task(name=f"{task.name}-first")(body)
    (first.si() | task.si()).apply_async()
    assert consumer.deliver() == "ran"
    message = consumer.message()
    assert header_of(message) == MessageHeader(id_of(message))
    assert f"Sent task {task.name}[{id_of(message)}] unguarded: " in lines(log)[0]
    assert consumer.deliver(message) is error
    with pytest.raises(type(error)):
        task.apply_async(link=[first.si()])
    assert consumer.message() is None
