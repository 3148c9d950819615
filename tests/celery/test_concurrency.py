"""How many instances of a task run at once, by its arguments and by what an operator sets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from celery.exceptions import Retry

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.celery import TaskAlreadyRunning
from django_redis_lock.celery.key_locks import MessageHeader
from tests.celery.consumer import Consumer, body, id_of


def test_number_is_made_of_the_arguments_of_each_call(consumer: Consumer) -> None:
    """By name, in the form in which the key is made of them, whichever way they are given."""
    numbers, seen = {7: 1, 8: 2}, []

    def number_for(shop_id: int, **others: Any) -> int:
        seen.append(others)
        return numbers[shop_id]

    def work(shop_id: int, codes: Any = ()) -> str:
        return "ran"

    key = consumer.app.main
    task = consumer.task(work, key=key + ":{shop_id}", concurrency=number_for)

    def runs(shop_id: int) -> set[bool]:
        message = consumer.send(task, shop_id, kwargs={"codes": (1, 2)})
        results = [consumer.deliver(message), task(shop_id, [1, 2]), task(shop_id, codes={2, 1})]
        return {result == "ran" for result in results}

    with semaphore(f"{key}:7", 5, using="locmem"), semaphore(f"{key}:8", 5, using="locmem"):
        assert (runs(7), runs(8)) == ({False}, {True})
        numbers[7] = 2
        assert runs(7) == {True}
    assert seen == [{"codes": [1, 2]}] * 9


@pytest.mark.parametrize("scope", ["run", "queue_and_run"])
@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        ("2", TypeError, "concurrency='2' must be a whole number"),
        (-1, ValueError, "concurrency=-1 must be a whole number from 0 to"),
        (1_000_001, ValueError, "concurrency=1000001 must be a whole number"),
        (LookupError("no plan"), LookupError, "no plan"),
        (TypeError("no name"), TypeError, "arguments by name: add **_ to its parameters. no name"),
    ],
)
def test_number_that_is_none_fails_as_a_key_does(
    consumer: Consumer, scope: str, number: Any, error: type[Exception], text: str
) -> None:
    """The call or its sending, which leaves nothing locked."""
    numbers: list[Any] = [2]

    def number_for(**_: Any) -> Any:
        if isinstance(numbers[0], Exception):
            raise numbers[0]
        return numbers[0]

    task = consumer.task(body, concurrency=number_for, scope=scope)
    message = consumer.send(task)
    numbers[0] = number
    for call in (task, *[task.delay] * (scope == "queue_and_run")):
        with pytest.raises(error, match=re.escape(text)):
            call()
    result = consumer.deliver(message)
    assert isinstance(result, error)
    assert text in str(result)
    assert error is LookupError or f"ask {task.name}" in str(result)
    assert not list(locks["locmem"].holders(f"{consumer.app.main}*"))


@pytest.mark.parametrize("pause", ["number", "operator"])
@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("skip", dict),
        ("raise", TaskAlreadyRunning),
        ("retry", Retry),
        ("wait", TaskAlreadyRunning),
        (lambda conflict: {"holder": conflict.holder, "skipped": True}, dict),
    ],
)
def test_nobody_runs_while_the_number_is_0(
    consumer: Consumer, pause: str, policy: Any, outcome: type, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy says what becomes of those who come; the log and the error say who paused it."""
    caplog.set_level("INFO", "django_redis_lock.celery")
    numbers = [0 if pause == "number" else 2]
    given = {"blocking_timeout": 0.05} if policy == "wait" else {}
    number: Any = (lambda **_: numbers[0]) if pause == "number" else 2
    task = consumer.task(body, concurrency=number, on_conflict=policy, **given)
    key, backend = consumer.app.main, locks["locmem"]
    backend.set_limit(key, 0 if pause == "operator" else None, by="ada")
    message = consumer.send(task)
    clocked = MessageHeader(id_of(message), wait_until=1)  # by which clock, is not known
    message.headers |= clocked.as_headers()
    result = consumer.deliver(message)
    assert isinstance(result, outcome)
    assert outcome is not dict or (result["skipped"], result["holder"]) == (True, None)
    assert policy != "skip" or result["reason"] == "no instance may run now"
    assert all(news["holder"] is None for _, news in consumer.notified)
    who = ", set by ada" if pause == "operator" else ""
    why = f"lock {key!r} is paused: limit 0{who}"
    assert callable(policy) or why in caplog.text
    assert outcome is not TaskAlreadyRunning or str(result).endswith(f"{why}.")
    numbers[0] = 2
    backend.set_limit(key, None)
    again = consumer.message()
    assert (again is not None) is (policy == "retry")
    assert consumer.deliver(again or consumer.send(task)) == "ran"
    assert not list(backend.holders(f"{key}*"))


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_message_that_is_sent_while_no_task_may_run(
    consumer: Consumer, policy: str, paused: bool
) -> None:
    """It has a place of its own, or is not sent, as with the lock of another task."""
    on_conflict = {"queue": policy, "run": "retry"}
    task = consumer.task(body, concurrency=2, scope="queue_and_run", on_conflict=on_conflict)
    key, backend = consumer.app.main, locks["locmem"]
    if paused:
        backend.set_limit(key, 0)
    else:
        lock(key, using="locmem").acquire()
    if policy == "raise":
        with pytest.raises(TaskAlreadyRunning):
            task.delay()
    else:
        message = consumer.send(task)
        assert task.delay().id == id_of(message)
        assert isinstance(consumer.deliver(message), Retry)
        backend.set_limit(key, None)
        backend.force_release(key)
        assert consumer.deliver() == "ran"
    backend.force_release(key)
    backend.set_limit(key, None)
    assert consumer.message() is None
    assert not list(backend.holders(f"{key}*"))


def test_permit_rests_after_a_short_run(consumer: Consumer) -> None:
    """One of several; the others are free."""
    task = consumer.task(body, concurrency=2, at_least_for=60)
    assert consumer.deliver(consumer.send(task)) == "ran"
    (holder,) = locks["locmem"].holders(consumer.app.main)
    assert (holder.marks["state"], holder.limit) == ("resting", 2)
    assert consumer.deliver(consumer.send(task)) == "ran"
    assert consumer.deliver(consumer.send(task))["skipped"]
