"""Scopes, retries, ends, senders and canvases, whose messages are delivered one by one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from celery import Signature, chain, chord
from celery.exceptions import ChordError, Ignore, Reject, Retry
from django.db import transaction

from django_redis_lock import locks
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.celery import Conflict, TaskAlreadyRunning
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.key_locks import QUEUED, SUPERSEDING, sent_of
from django_redis_lock.celery.sending import Sending
from django_redis_lock.exceptions import LockUnavailable
from tests.apps.celery.app import QUEUE, RUN, SCOPES, WAITING
from tests.celery.consumer import Consumer, body, held, is_free, key_locks, lines, unavailable

RETRYING = {"bind": True, "max_retries": 2, "default_retry_delay": 0}


def all_free(consumer: Consumer) -> bool:
    return not list(locks["locmem"].holders(f"{consumer.app.main}*"))


# Retries.


@pytest.mark.parametrize("failures", [2, 9])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("how", ["self", "auto", "beside"])
def test_retries_are_one_chain(consumer: Consumer, how: str, scope: str, failures: int) -> None:
    """A retried task comes through its own lock; when retries are exhausted, the error is its."""

    def work(self: Any) -> int:
        if self.request.retries < failures:
            raise KeyError(failures) if how == "auto" else self.retry(exc=KeyError(failures))
        return int(self.request.retries)

    options = {**RETRYING, **({"autoretry_for": (KeyError,)} if how == "auto" else {})}
    task = consumer.task(work, options, scope=scope, concurrency=2 if how == "beside" else 1)
    task.delay()
    *before, last = consumer.serve()
    assert [type(each) for each in before] == [Retry, Retry]
    assert last == 2 if failures == 2 else type(last) is KeyError
    assert consumer.kinds() == []
    assert all_free(consumer)


@pytest.mark.parametrize("policy", ["raise", "retry"])
def test_conflicts_burn_no_retries(consumer: Consumer, policy: str) -> None:
    """A conflict is no failure that ``autoretry_for=(Exception,)`` retries."""

    def work(self: Any) -> str:
        if not self.request.retries:
            raise KeyError("its own")
        return "ran"

    options = {**RETRYING, "max_retries": 1, "autoretry_for": (Exception,)}
    task = consumer.task(work, options, on_conflict=policy)
    other, message = held(task, "another"), consumer.send(task)
    if policy == "raise":
        assert isinstance(consumer.deliver(message), TaskAlreadyRunning)
        assert consumer.message() is None
        return
    for _ in range(3):
        assert isinstance(consumer.deliver(message), Retry)
        message = consumer.message()
    other.release()
    assert isinstance(consumer.deliver(message), Retry)
    assert consumer.serve() == ["ran"]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("how", ["ignore", "reject", "replace", "itself", *SCOPES])
def test_no_end_leaves_a_lock(consumer: Consumer, how: str, scope: str) -> None:
    """However a task ends, also replaced by another of its key; and the next one runs."""

    def other() -> str:
        return "replaced"

    def leave(self: Any, how: str = "end") -> str:
        match how:
            case "end":
                return "replaced"
            case "ignore":
                raise Ignore
            case "reject":
                raise Reject("", requeue=False)
            case "itself":
                raise self.replace(self.si("end"))
        raise self.replace(replacement.si())

    plain = consumer.app.task(name=f"{consumer.app.main}.plain", shared=False)
    replacement = consumer.task(other, scope=how) if how in SCOPES else plain(other)
    task = consumer.task(leave, {"bind": True}, scope=scope)
    result = task.delay(how)
    results = consumer.serve()
    assert all_free(consumer)
    if how not in ("ignore", "reject"):
        assert (len(results), result.get()) == (2, "replaced")
    assert task.delay() is not None
    assert consumer.serve() == ["replaced"]


# Sending.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", ["delay_on_commit", "apply_async_on_commit"])
def test_rolled_back_transaction_takes_no_lock(consumer: Consumer, scope: str, method: str) -> None:
    """With Celery's DjangoTask a lock is taken and a message sent at the commit, never before."""
    send = getattr(consumer.task(body, scope=scope), method)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        send()
        raise ZeroDivisionError
    assert consumer.message() is None
    with transaction.atomic():
        send()
        assert all_free(consumer)
    assert all_free(consumer) is (scope not in WAITING)
    assert consumer.serve() == ["ran"]


@pytest.mark.parametrize(
    "guard",
    [
        {"scope": "queue"},
        {"scope": "queue", "on_conflict": "raise"},
        {"scope": "queue", "on_conflict": {"run": "wait"}},
        {"scope": "queue", "on_conflict": "supersede", "concurrency": 2},
    ],
    ids=repr,
)
def test_eager_task_sends_its_own_next_page(consumer: Consumer, guard: dict[str, Any]) -> None:
    """Each page runs, as it does in a worker, and under the lock."""
    ran: list[Any] = []

    def work(self: Any, page: int = 1) -> None:
        ran.append((page, is_free(task)))
        if page < 4:
            self.apply_async((page + 1,)) if page % 2 else task.s(page + 1).apply_async()

    consumer.app.conf.task_always_eager = True
    task = consumer.task(work, {"bind": True}, **guard)
    task.delay()
    assert ran == [(page, False) for page in (1, 2, 3, 4)]
    assert is_free(task)


# Servers that are down.


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("then", ["raise", "run"])
def test_guard_without_its_server(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, log: Any, then: str, scope: str
) -> None:
    """It is closed or open: an error and no run, or sent and run unguarded, and logged as such."""
    task = consumer.task(body, scope=scope, on_unavailable=then)
    monkeypatch.setattr(LocMemLockBackend, "call", unavailable)
    if then == "raise" and scope in WAITING:
        with pytest.raises(LockUnavailable):
            task.delay()
        consumer.app.send_task(task.name)
    else:
        task.delay()
    (result,) = consumer.serve()
    assert result == "ran" if then == "run" else isinstance(result, LockUnavailable)
    assert sum("Started task" in line for line in lines(log)) == (then == "run")


@pytest.mark.parametrize("scope", WAITING)
def test_unguarded_run_gives_up_its_place(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """If the server is available again when it ends."""
    task = consumer.task(monkeypatch.undo, scope=scope, on_unavailable="run")
    message = consumer.send(task)
    monkeypatch.setattr(LocMemLockBackend, "call", unavailable)
    consumer.deliver(message)
    assert all_free(consumer)


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


def test_a_message_is_superseded_by_one_sender_at_a_time(consumer: Consumer) -> None:
    """Another that has just begun goes first."""
    task = consumer.task(body, scope="queue", on_conflict="supersede")
    consumer.send(task)
    sending = Sending(getattr(task, GUARD), task, ((), {}), {}, None)
    sending.key = consumer.app.main
    (older,) = sending.holders(sending.reservations)
    name = sending.record_of(older.task_id, sent_of(older))
    assert sending.record(name, SUPERSEDING).acquire(blocking=False)
    assert not sending._take_from(older, sending.handle(older.name, 10.0))
    assert sending.holders(sending.reservations) != []
