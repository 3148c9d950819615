"""Scopes, conflicts, retries and senders of guarded tasks, on a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult
from django.db import transaction

from django_redis_lock import locks
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.apps.celery import scopes as tasks
from tests.apps.celery import settings as worker_settings
from tests.apps.celery.app import SCOPES, WAITING, app
from tests.tools import eventually
from tests.tools.celery_worker import (
    WAIT,
    Worker,
    all_free,
    go,
    held,
    key_of,
    ran,
    signals_of,
    started,
    takes_no_lock,
)

# Retries.


@pytest.mark.parametrize("failures", [2, 9])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    "table", [tasks.retrying, tasks.autoretrying, tasks.beside], ids=["self", "auto", "beside"]
)
def test_retries_are_one_chain(
    client: redis.Redis, worker: Worker, what: str, table: dict[str, Any], scope: str, failures: int
) -> None:
    """A retried task comes through its own lock, one run after the other, and ends with none.

    When the retries are exhausted the error is the task's own.
    """
    result = table[scope].delay(what, failures=failures)
    if failures == 2:
        assert result.get(timeout=WAIT) == 2
    else:
        with pytest.raises(KeyError, match=what):
            result.get(timeout=WAIT)
    assert ran(client, what) == ["1", "1", "1"]
    all_free(what)
    assert len(worker.lines(f"[{result.id}] received")) == 3
    assert not signals_of(client, result.id, "skipped")


@pytest.mark.parametrize("policy", ["raise", "retry"])
def test_conflicts_burn_no_retries(
    client: redis.Redis, worker: Worker, what: str, policy: str
) -> None:
    """A conflict is no failure that ``autoretry_for=(Exception,)`` retries."""
    task = tasks.burning[policy]
    first = task.delay(what)
    started(client, what)
    second = task.delay(what)
    if policy == "raise":
        with pytest.raises(TaskAlreadyRunning):
            second.get(timeout=WAIT)
        assert len(worker.lines(f"[{second.id}] received")) == 1
    else:
        eventually(lambda: len(signals_of(client, second.id, "waiting")) > 3, "conflicts")
    go(client, what)
    assert first.get(timeout=WAIT) == "go 0"
    if policy == "retry":  # the one retry that the task has is still its own
        go(client, what, say="fail")
        eventually(lambda: len(ran(client, what)) == 3, "the retry of the second")
        go(client, what)
        assert second.get(timeout=WAIT) == "go 1"
        assert ran(client, what) == ["0", "0", "1"]
    all_free(what)


# Other ends.

ENDS = ["ignore", "reject", "replace", "replace by another", "replace by itself"]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("how", ENDS)
def test_no_end_leaves_a_lock(client: redis.Redis, what: str, how: str, scope: str) -> None:
    """However a task ends, its locks are free at once, and the next one runs."""
    task = tasks.leaving[scope]
    result = task.delay(what, how)
    started(client, what)
    if how.startswith("replace"):
        ends = {"replace": "replaced", "replace by another": what, "replace by itself": "end"}
        assert result.get(timeout=WAIT) == ends[how]
    all_free(what)
    assert task.delay(what, "end").get(timeout=WAIT) == "end"


# Sending.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", ["delay_on_commit", "apply_async_on_commit"])
def test_rolled_back_transaction_takes_no_lock(
    client: redis.Redis, what: str, scope: str, method: str
) -> None:
    """With Celery's DjangoTask a lock is taken and a message sent at the commit, never before."""
    task = tasks.plain[scope]
    send = getattr(task, method)
    arguments = (what,) if method == "delay_on_commit" else ((what,),)

    def roll_back() -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            send(*arguments)
            raise ZeroDivisionError

    takes_no_lock(roll_back)
    with transaction.atomic():
        send(*arguments)
        assert not held(what)
    started(client, what)
    assert key_of(task, what) in held(what)
    go(client, what)
    all_free(what)
    assert ran(client, what) == ["ran"]


# Calls without a message.


@pytest.fixture
def eager(session_server: EmbeddedServer) -> Iterator[Celery]:
    """An app whose tasks run where they are sent."""
    own = Celery("eager", broker="memory://", set_as_current=False, fixups=[])
    own.conf.task_always_eager = True
    yield own
    locks.reset()


PATIENT: list[dict[str, Any]] = [
    {"scope": "queue"},
    {"scope": "queue", "on_conflict": "raise"},
    {"scope": "queue", "on_conflict": {"run": "wait"}},
    {"scope": "queue", "on_conflict": "supersede", "concurrency": 2},
]
"""Options with which a message that is sent in a run waits until it has ended."""


@pytest.mark.parametrize("guard", PATIENT, ids=repr)
def test_eager_task_sends_its_own_next_page(eager: Celery, what: str, guard: Any) -> None:
    """Each page runs, as it does in a worker, and under the lock."""
    ran: list[Any] = []

    @eager.task(name=what, bind=True)
    @single_instance_task(**guard)
    def work(self: Any, page: int = 1) -> None:
        ran.append((page, len(held(what))))
        if page < 4:
            self.apply_async((page + 1,)) if page % 2 else work.s(page + 1).apply_async()

    work.delay()
    assert ran == [(page, 1) for page in (1, 2, 3, 4)]
    assert not held(what)


# Senders that bypass the task.


# Servers that are down.


@pytest.fixture
def no_server(settings: Any) -> None:
    """The sender has an alias of LOCKS whose server is down, as the worker has."""
    settings.LOCKS = worker_settings.LOCKS


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("send", ["sent", "run"])
def test_closed_guard_fails_without_its_server(
    client: redis.Redis, what: str, scope: str, send: str
) -> None:
    """``on_unavailable="raise"``: LockUnavailable, from the sender or from the task, and no run."""
    task = tasks.closed[scope, "raise"]
    if send == "sent" and scope in WAITING:
        with pytest.raises(LockUnavailable):
            task.delay(what)
    else:
        result = tasks.beat_app.send_task(task.name, [what]) if send == "run" else task.delay(what)
        with pytest.raises(LockUnavailable):
            AsyncResult(result.id, app=app).get(timeout=WAIT)
    assert not ran(client, what)


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("scope", SCOPES)
def test_open_guard_runs_without_its_server(
    client: redis.Redis, worker: Worker, what: str, scope: str
) -> None:
    """``on_unavailable="run"``: sent and run unguarded, with a result, and logged as such."""
    task = tasks.closed[scope, "run"]
    go(client, what)
    result = task.delay(what)
    assert result.get(timeout=WAIT) == "go"
    assert len(worker.lines(f"[{result.id}] runs unguarded")) == 1
    assert ran(client, what) == ["ran"]


# The newest arguments win.
