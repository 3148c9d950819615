"""Conflicts inside chords, groups, chains and links, on a real worker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Signature, chain, chord, group
from celery.exceptions import ChordError
from celery.result import AsyncResult

from django_redis_lock.celery import TaskAlreadyRunning
from django_redis_lock.exceptions import LockUnavailable
from tests.apps.celery import scopes as tasks
from tests.apps.celery.app import NOWHERE, QUEUE, QUEUE_AND_RUN, RUN, SCOPES, WAITING
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, Worker, all_free, go, key_of, ran, started

FAILS = {(scope, "raise") for scope in SCOPES} | {(RUN, how) for how in ("wait", "retry")}
"""Conflicts that raise ``TaskAlreadyRunning`` if their result is awaited."""
REASONS = {
    "another instance is running",
    "another instance was waiting or running when it was sent",
}
CONFLICTS = [
    *(case for case in tasks.members if case[0] == RUN),
    *((QUEUE, policy) for policy in ("skip", "raise", "callable", "supersede")),
    *((QUEUE_AND_RUN, policy) for policy in ("skip", "raise", "callable")),
]
"""The others behave in a canvas as ``skip`` does, for they are told apart when they would run."""
each_conflict = pytest.mark.parametrize(("scope", "policy"), CONFLICTS)


class Case:
    """A task of which one runs already, and in scope ``queue`` one waits besides."""

    def __init__(self, client: redis.Redis, scope: str, policy: str) -> None:
        self.client = client
        self.scope, self.policy = scope, policy
        self.task = tasks.members[scope, policy]
        self.what = uuid.uuid4().hex[:12]
        self.running = self.task.delay(what=self.what, hold=True)
        started(client, self.what)
        if scope == QUEUE:
            self.task.apply_async(kwargs={"what": self.what}, queue=NOWHERE)

    @property
    def member(self) -> Signature:
        """One more of it, for a canvas."""
        return self.task.s(what=self.what)

    @property
    def fails(self) -> bool:
        """Whether the conflict is an error."""
        return (self.scope, self.policy) in FAILS

    def check(self, answer: Any) -> None:
        """Assert that an answer is what the policy makes of a conflict."""
        if self.policy == "supersede":
            assert answer == "ran"
        elif self.policy == "callable":
            assert answer["key"] == key_of(self.task, self.what)
            assert answer["holder"]
        else:
            assert answer["skipped"] is True
            assert answer["reason"] in REASONS
            assert answer["key"] == key_of(self.task, self.what)

    def sent(self) -> None:
        """Let the one that supersedes have its turn; all others find the first one running."""
        if self.policy == "supersede":
            go(self.client, self.what)
            self.running.get(timeout=WAIT)

    def end(self) -> None:
        """Assert that the first one ran on all the time, alone, and let it end."""
        superseding = self.policy == "supersede"
        assert ran(self.client, self.what) == ["holder", "member"][: 1 + superseding]
        if not superseding:
            assert not self.running.ready()
            go(self.client, self.what)
        assert self.running.get(timeout=WAIT) == "ran"


@pytest.fixture
def case(client: redis.Redis, scope: str, policy: str) -> Iterator[Case]:
    """A conflict in waiting."""
    case = Case(client, scope, policy)
    yield case
    case.end()


@each_conflict
def test_chord_header(case: Case) -> None:
    """A chord completes with the answer of the duplicate, or its body fails."""
    whole = chord([tasks.echo.s(1), case.member, tasks.echo.s(3)], tasks.total.s())
    result = whole.delay()
    case.sent()
    if case.fails:
        check_failed_chord(result, "TaskAlreadyRunning")
    else:
        first, answer, third = result.get(timeout=WAIT)
        assert (first, third) == (1, 3)
        case.check(answer)


@each_conflict
def test_group(case: Case) -> None:
    """Each member of a group has a result, the duplicate too."""
    result = group(tasks.echo.s(1), case.member, tasks.echo.s(3)).delay()
    case.sent()
    first, answer, third = result
    assert (first.get(timeout=WAIT), third.get(timeout=WAIT)) == (1, 3)
    if case.fails:
        with pytest.raises(TaskAlreadyRunning):
            answer.get(timeout=WAIT)
        assert result.ready()
    else:
        case.check(result.get(timeout=WAIT)[1])


@each_conflict
def test_middle_of_a_chain(case: Case) -> None:
    """The same in the middle; the parent that succeeded stays so."""
    result = chain(tasks.echo.s("first"), case.member, tasks.echo.s()).delay()
    case.sent()
    check_end_of_chain(case, result, result.parent)
    assert result.parent.parent.get(timeout=WAIT) == "first"
    assert result.parent.parent.state == "SUCCESS"


def check_failed_chord(result: AsyncResult, text: str) -> None:
    """Assert that the body of a chord fails for an error in the header."""
    eventually(lambda: result.state == "FAILURE", "the failure of the chord")
    assert isinstance(result.result, ChordError)
    assert text in str(result.result)


def check_end_of_chain(case: Case, result: AsyncResult, member: AsyncResult) -> None:
    """Assert how the last of a chain ends after a conflict before it."""
    if case.fails:
        with pytest.raises(TaskAlreadyRunning):
            result.get(timeout=WAIT)
        assert member.state == "FAILURE"
    else:
        case.check(result.get(timeout=WAIT))
        eventually(member.successful, "the success, which Celery stores after it has gone on")


@pytest.mark.parametrize("scope", WAITING)
def test_members_that_are_duplicates_of_each_other(
    client: redis.Redis, name: str, scope: str
) -> None:
    """A chord whose members have one key completes, for all of them are sent."""
    task = tasks.members[scope, "skip"]
    result = chord([task.s(what=name) for _ in range(4)], tasks.total.s()).delay()
    answers = result.get(timeout=WAIT)
    assert len(answers) == 4
    assert 1 <= answers.count("ran") == len(ran(client, name))
    all_free(name)


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
