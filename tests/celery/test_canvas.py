"""Conflicts inside chords and chains."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from celery import Signature, chain, chord
from celery.exceptions import ChordError

from django_redis_lock.celery import Conflict, TaskAlreadyRunning
from django_redis_lock.celery.key_locks import QUEUED
from tests.apps.celery.app import QUEUE, RUN, SCOPES, WAITING
from tests.celery.consumer import Consumer, body, held, key_locks


def answer(conflict: Conflict) -> dict[str, Any]:
    return {"key": conflict.key, "holder": (conflict.described or {}).get("task_id")}


POLICIES: dict[str, dict[str, Any]] = {
    "skip": {"on_conflict": "skip"},
    "raise": {"on_conflict": "raise"},
    "callable": {"on_conflict": answer},
    "wait": {"on_conflict": "wait", "blocking_timeout": 0.05},
    "retry": {"on_conflict": "retry", "max_retries": 2},
}
FAILS = {(scope, "raise") for scope in SCOPES} | {(RUN, how) for how in ("wait", "retry")}
"""Conflicts that raise ``TaskAlreadyRunning`` if their result is awaited."""
each_conflict = pytest.mark.parametrize(
    ("scope", "policy"),
    [*product([RUN], POLICIES), *product(WAITING, ["skip", "raise", "callable"])],
)


@pytest.fixture
def member(consumer: Consumer, scope: str, policy: str) -> Signature:
    """One more of a task that runs already, alone, and of which in scope ``queue`` one waits."""
    task = consumer.task(body, scope=scope, **POLICIES[policy])
    held(task, "running")
    if scope == QUEUE:
        of_key = key_locks(task, "waiting")
        assert of_key.handle(of_key.reservations[0], 60, state=QUEUED).acquire(blocking=False)
    signature: Signature = task.s()
    return signature


def echo(consumer: Consumer) -> Any:
    """Return a task that returns what it is given."""

    def echo(item: Any) -> Any:
        return item

    return consumer.app.task(name=f"{consumer.app.main}.echo", shared=False)(echo)


def check(consumer: Consumer, answer: Any, policy: str) -> None:
    """Check that an answer is what the policy makes of a conflict."""
    assert answer["key"] == consumer.app.main
    assert answer["holder"]
    assert policy == "callable" or answer["skipped"] is True


@each_conflict
def test_chord_header(consumer: Consumer, member: Signature, scope: str, policy: str) -> None:
    """A chord completes with the answer of the duplicate, or its body fails."""
    one = echo(consumer)
    result = chord([one.s(1), member, one.s(3)], one.s(), app=consumer.app).delay()
    consumer.serve()
    if (scope, policy) in FAILS:
        assert isinstance(result.result, ChordError)
        assert "TaskAlreadyRunning" in str(result.result)
    else:
        first, answer, third = result.get()
        assert (first, third) == (1, 3)
        check(consumer, answer, policy)


@each_conflict
def test_middle_of_a_chain(consumer: Consumer, member: Signature, scope: str, policy: str) -> None:
    """The same in the middle; the parent that succeeded stays so."""
    one = echo(consumer)
    result = chain(one.s("first"), member, one.s(), app=consumer.app).delay()
    consumer.serve()
    if (scope, policy) in FAILS:
        assert isinstance(result.parent.result, TaskAlreadyRunning)
        assert result.parent.state == "FAILURE"
    else:
        check(consumer, result.get(), policy)
        assert result.parent.successful()
    assert result.parent.parent.get() == "first"
