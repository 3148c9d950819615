"""Conflicts inside chords, chains and links, on a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Signature, chain, chord
from celery.exceptions import ChordError

from django_redis_lock.celery import TaskAlreadyRunning
from django_redis_lock.exceptions import LockUnavailable
from tests.apps.celery import scopes as tasks
from tests.apps.celery.app import NOWHERE, QUEUE, QUEUE_AND_RUN, RUN, SCOPES
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, go, key_of, ran, started

FAILS = {(scope, "raise") for scope in SCOPES} | {(RUN, how) for how in ("wait", "retry")}
"""Conflicts that raise ``TaskAlreadyRunning`` if their result is awaited."""
CONFLICTS = [
    *(case for case in tasks.members if case[0] == RUN),
    *((scope, how) for scope in (QUEUE, QUEUE_AND_RUN) for how in ("skip", "raise", "callable")),
]
"""The others behave in a canvas as ``skip`` does, for they are told apart when they would run."""
each_conflict = pytest.mark.parametrize(("scope", "policy"), CONFLICTS)


@pytest.fixture
def member(client: redis.Redis, what: str, scope: str, policy: str) -> Iterator[Signature]:
    """One more of a task that runs already, alone, and of which in scope ``queue`` one waits."""
    task = tasks.members[scope, policy]
    running = task.delay(what=what, hold=True)
    started(client, what)
    if scope == QUEUE:
        task.apply_async(kwargs={"what": what}, queue=NOWHERE)
    yield task.s(what=what)
    assert ran(client, what) == ["holder"]
    assert not running.ready()
    go(client, what)
    assert running.get(timeout=WAIT) == "ran"


def check(answer: Any, scope: str, policy: str, what: str) -> None:
    """Check that an answer is what the policy makes of a conflict."""
    assert answer["key"] == key_of(tasks.members[scope, policy], what)
    assert answer["holder"]
    assert policy == "callable" or answer["skipped"] is True


@each_conflict
def test_chord_header(member: Signature, scope: str, policy: str, what: str) -> None:
    """A chord completes with the answer of the duplicate, or its body fails."""
    result = chord([tasks.echo.s(1), member, tasks.echo.s(3)], tasks.total.s()).delay()
    if (scope, policy) in FAILS:
        eventually(lambda: result.state == "FAILURE", "the failure of the chord")
        assert isinstance(result.result, ChordError)
        assert "TaskAlreadyRunning" in str(result.result)
    else:
        first, answer, third = result.get(timeout=WAIT)
        assert (first, third) == (1, 3)
        check(answer, scope, policy, what)


@each_conflict
def test_middle_of_a_chain(member: Signature, scope: str, policy: str, what: str) -> None:
    """The same in the middle; the parent that succeeded stays so."""
    result = chain(tasks.echo.s("first"), member, tasks.echo.s()).delay()
    if (scope, policy) in FAILS:
        with pytest.raises(TaskAlreadyRunning):
            result.get(timeout=WAIT)
        assert result.parent.state == "FAILURE"
    else:
        check(result.get(timeout=WAIT), scope, policy, what)
        eventually(result.parent.successful, "the success, stored after Celery has gone on")
    assert result.parent.parent.get(timeout=WAIT) == "first"
    assert result.parent.parent.state == "SUCCESS"


# Without the server of the locks.


@pytest.mark.parametrize("scope", SCOPES)
def test_parent_stays_successful_without_the_server(
    client: redis.Redis, worker: Worker, name: str, scope: str
) -> None:
    """A worker that can't lock the next of a chain sends it all the same; it fails by itself."""
    task = tasks.closed[scope, "raise"]
    result = chain(tasks.echo.s("first"), task.si(name), tasks.echo.s()).delay()
    with pytest.raises(LockUnavailable):
        result.get(timeout=WAIT)
    assert result.parent.parent.state == "SUCCESS"
    linked = task.si(name)
    called = linked.freeze()
    parent = tasks.echo.apply_async(("first",), link=linked)
    with pytest.raises(LockUnavailable):
        called.get(timeout=WAIT)
    assert parent.get(timeout=WAIT) == "first"
    assert not ran(client, name)
