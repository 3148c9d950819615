"""What deliveries of a guarded task do about each other, one at a time and in this process."""

from __future__ import annotations

import itertools
import operator
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded
from celery.signals import worker_init, worker_shutting_down

from django_redis_lock import locks, semaphore
from django_redis_lock.celery import TaskAlreadyRunning, policies
from django_redis_lock.celery.key_locks import HEADER, QUEUED, GuardedCall, MessageHeader, TaskLock
from django_redis_lock.celery.outbox import Publisher
from django_redis_lock.primitives.lock import DETACHED
from django_redis_lock.protocol.records import Holder
from example_project.embedded import EmbeddedServer
from tests.celery.consumer import Consumer, body, header_of, held, id_of, is_free, key_locks, lines
from tests.contracts.exits import in_child, state
from tests.tools import Background, eventually, waiters
from tests.tools.docs import DOCS, table

LONG = 2.0
"""Seconds to wait for what comes, and BRIEF for what does not."""
BRIEF = 0.02


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set how long a delivery waits for things."""

    def set_to(**seconds: float) -> None:
        for name, value in seconds.items():
            monkeypatch.setattr(policies, name, value)

    set_to(WAIT_FOR_FIRST=LONG, TICKET_TURN=BRIEF, RESULT_PATIENCE=BRIEF, RESULT_MOMENT=BRIEF)
    return set_to


pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which locks are waited for."""
    acquire, seconds = TaskLock.acquire, []

    def note(self: TaskLock, **how: Any) -> bool:
        if "blocking_timeout" in how:
            seconds.append(how["blocking_timeout"])
        return acquire(self, **how)

    monkeypatch.setattr(TaskLock, "acquire", note)
    return seconds


def is_ignored(result: Any, text: str) -> bool:
    """Whether a delivery ended without a result of its own, for this reason."""
    return isinstance(result, Ignore) and str(result) == text


def release_for_a_waiter(lock: TaskLock) -> None:
    eventually(lambda: waiters(lock.name, "locmem") == 1, "a waiter")
    lock.release()


# The table of what a call does.


def decide(conflict: Any) -> str:
    return "decided"


ROWS = [
    (*row[:3], re.findall(r"\*\*(.+?)\*\*", row[3])[0])
    for row in table(DOCS / "explanation/how-tasks-are-guarded.md", "What a call does")
]
"""Those of the page: the call, its lock, the policy, and what it does."""
CALLS: dict[str, set[str]] = {
    "new": set(),
    "known": {policies.KNOWN},
    "redelivered": {policies.KNOWN},
    "direct": {policies.CALL},
    "eager": {policies.CALL},
    "inside": {policies.CALL, policies.INSIDE},
}
"""What the table says about each kind of call."""
HOLDERS: dict[str, tuple[set[str], str]] = {
    "free": ({policies.FREE}, ""),
    "dead": ({policies.DEAD}, ""),
    "sent again": ({policies.RESERVED, policies.SENT_AGAIN}, QUEUED),
    "ticket": ({policies.RESERVED}, DETACHED),
    "run": ({policies.FIRST}, ""),
    "other state": ({policies.FIRST}, "other"),
    "long run": ({policies.FIRST, policies.FIRST_LASTS}, ""),
    "another": ({policies.OTHER}, ""),
    "no task": ({policies.OTHER}, ""),
    "message": ({policies.OTHER, policies.MESSAGES}, QUEUED),
    "detached": ({policies.OTHER, policies.MESSAGES}, DETACHED),
    "done": ({policies.DONE}, ""),
}
"""What the table says about each holder, and its ``state``."""
MESSAGES, OWN, OTHERS = [*CALLS][:3], [*HOLDERS][1:7], [*HOLDERS][7:11]
POLICIES = ("callable", "skip", "raise", "retry", "park", "wait")
GUARDS: dict[str, dict[str, Any]] = {
    "callable": {"on_conflict": decide},
    "park": {"using": "default"},
    "wait": {"blocking_timeout": LONG},
}
CASES = [
    *itertools.product(MESSAGES, ["free", *OWN], ["skip"]),
    *itertools.product([*MESSAGES, "direct", "eager"], OTHERS, POLICIES),
    *itertools.product(["redelivered"], ["done"], POLICIES),
    *itertools.product(["inside"], ["another"], POLICIES),
]
FOR_ITS_RUN = "began to wait: lock {key!r} is held by {holder}, another delivery of the same task"
COMES_AGAIN = ("waiting", "will be retried: lock {key!r} is held by {holder}, next try in 1 s")
TAKES_OVER = ("taken over", "took over lock {key!r}, which was held by {holder}")
OUTCOMES: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "start": ("ran", []),
    "take over": ("ran", [TAKES_OVER]),
    "end": (Ignore, []),
    "go back": (Retry, [COMES_AGAIN]),
    "send back": (Ignore, [("waiting", FOR_ITS_RUN)]),
    "wait for it": ("ran", [("waiting", FOR_ITS_RUN), TAKES_OVER]),
    "call it": ("decided", []),
    "skip": (dict, [("skipped", "skipped: lock {key!r} is held by {holder}")]),
    "refuse": (TaskAlreadyRunning, [("skipped", "refused: lock {key!r} is held by {holder}")]),
    "retry": (Retry, [COMES_AGAIN]),
    "park": (Ignore, [("parked", "was parked: lock {key!r} is held by {holder}")]),
    "wait in queue": (Retry, [COMES_AGAIN]),
    "wait": ("ran", [("waiting", "began to wait: lock {key!r} is held by {holder}")]),
}
"""The result of each thing that a call can do, or the type of that; its signals and log lines."""
REASONS = {
    "raise": "lock {key!r} is held by {holder}.",
    "inside": "it would wait for the run that calls it.",
    "retry": "lock {key!r} was not free, and 'retry' works only in a worker, not in a direct or "
    "eager call.",
    "park": "lock {key!r} was not free, and 'park' works only in a worker, not in a direct or "
    "eager call.",
    "wait": "lock {key!r} is reserved for a message, which may need the worker in which this call "
    "would wait.",
}
"""Why a call is refused."""


def action(call: str, lock: str, policy: str) -> str:
    """Return what a call does by the first row of the page that fits."""
    fit = {"any", *CALLS[call]}, {"any", *HOLDERS[lock][0]}, {"any", policy}
    return next(row[3] for row in ROWS if all(map(operator.contains, fit, row)))


def hold(task: Any, lock: str, task_id: str, patch: pytest.MonkeyPatch) -> TaskLock:
    """Let a holder that the table knows take a lock."""
    whose = task_id if lock in OWN else None if lock == "no task" else "another"
    state = HOLDERS[lock][1]
    holder = held(task, whose, **({"state": state} if state else {}))
    if lock == "dead":
        module = "django_redis_lock.celery.key_locks"
        patch.setattr(f"{module}.stored_state", pytest.fail)  # it can't have stored one
        patch.setattr(f"{module}.is_dead", lambda it: it.token_id == holder.token_id)
    elif lock == "long run":
        patch.setattr(policies, "WAIT_FOR_FIRST", BRIEF)
    elif lock == "done":
        task.backend.mark_as_done(task_id, "its result")
    return holder


def test_page_has_the_rows_of_the_code() -> None:
    """And all of them are tried here, but two that have tests of their own."""
    rows = [(row.call, row.lock, row.policy, row.then.__name__) for row in policies.TABLE]
    assert [(*row[:3], row[3].replace(" ", "_")) for row in ROWS] == rows
    tried = {action(*case) for case in CASES}
    assert {row[3] for row in ROWS} - tried == {"answer", "skip superseded"}
    assert tried == set(OUTCOMES)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize(("call", "lock", "policy"), CASES)
def test_call_does_what_the_page_says(
    server: EmbeddedServer,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    call: str,
    lock: str,
    policy: str,
    concurrency: int,
) -> None:
    """Of two permits a message has the other one, but one by this task itself is enough."""
    given = {"on_conflict": policy, **GUARDS.get(policy, {})}
    task = consumer.task(body, concurrency=concurrency, **given)
    message = consumer.send(task)
    if call == "known":
        message.headers |= MessageHeader(id_of(message)).as_headers()
    if concurrency > 1 and lock not in OWN:
        held(task, "a message", state=QUEUED)
    if lock != "free" and call != "inside":
        other = hold(task, lock, id_of(message), monkeypatch)
        if lock not in ("dead", "long run", "done"):
            consumer.when["waiting"] = other.release
    holders, results = key_locks(task).holders(), []

    def outer() -> Any:
        holders.extend(key_locks(task).holders())
        results.append(task() if call == "direct" else task.apply().result)

    if call in MESSAGES:
        results.append(consumer.deliver(message, redelivered=call == "redelivered"))
    else:
        using = given.get("using", "locmem")
        guarded = partial(consumer.task, concurrency=concurrency, using=using)
        made = guarded if call == "inside" else consumer.app.task(name="outer", shared=False)
        results.append(consumer.deliver(consumer.send(made(outer))))
    does = action(call, lock, policy)
    result, signals = OUTCOMES[does]
    assert isinstance(results[0], result) if isinstance(result, type) else results[0] == result
    holder = min(holders, key=policies.key_locks.is_for_message, default=None)
    full = concurrency > 1 and lock not in OWN
    who = f"{holder}; all 2 permits are taken" if full else holder
    names = {"key": task.app.main, "holder": who}
    texts = [text.format(**names) for _, text in signals]
    assert [line.partition("] ")[2] for line in lines(log)] == texts
    assert consumer.kinds() == [kind for kind, _ in signals]
    for _, news in consumer.notified:
        assert (news["key"], news["holder"].token_id) == (task.app.main, holder.token_id)
        assert news.get("policy", policy) == policy
        assert call not in MESSAGES or news["task_id"] == id_of(message)
    if does == "refuse":
        reason = REASONS["inside" if call == "inside" and policy != "raise" else policy]
        assert str(results[0]) == f"Task {task.name} was not run: {reason.format(**names)}"
    comes_again = does in {"go back", "send back", "retry", "wait in queue"}
    assert (consumer.message() is not None) is comes_again
    assert consumer.ended == ["ack"]


# The same task, in another delivery.


@pytest.mark.parametrize("other", ["", "another"])
def test_delivery_ends_if_the_one_before_has_succeeded(
    consumer: Consumer, patience: Callable[..., None], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """It stores its result soon after it has released its lock, whoever has had that since."""
    patience(RESULT_PATIENCE=LONG, RESULT_MOMENT=0)
    task = consumer.task(body, on_conflict="wait")
    message = consumer.send(task)
    consumer.when["waiting"] = held(task, other or id_of(message)).release
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        task.backend.mark_as_done(id_of(message), "its result")

    monkeypatch.setattr(time, "sleep", nap)
    result = consumer.deliver(message, redelivered=True)
    assert is_ignored(result, f"another delivery of {id_of(message)} has succeeded")
    assert task.AsyncResult(id_of(message)).result == "its result"
    assert naps == [0.05]
    assert consumer.kinds() == ["waiting"]
    assert is_free(task)


@pytest.mark.parametrize(
    ("why", "looks"),
    [("first", False), ("queue", False), ("ignored", False), ("redelivered", True)],
)
def test_redelivery_looks_for_a_result_for_a_moment(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, why: str, looks: bool
) -> None:
    """Unless it stores none, or takes a reservation, which no delivery has used then."""
    task = consumer.task(body, scope="queue" if why == "queue" else "run")
    message = consumer.send(task, ignore_result=why == "ignored")
    naps, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: naps.append(seconds) or sleep(seconds))
    assert consumer.deliver(message, redelivered=why != "first") == "ran"
    assert (0.05 in naps) is looks


@pytest.mark.parametrize(
    ("retries", "redelivered", "end"),
    [("2", True, "ran"), ("2", True, Ignore), ("1", False, "ran")],
)
def test_delivery_that_waited_in_vain_comes_again(
    consumer: Consumer,
    patience: Callable[..., None],
    turns: list[float],
    retries: str,
    redelivered: bool,
    end: Any,
) -> None:
    """So that other tasks can run meanwhile; with its header, and as the try that it is.

    The run that sent it as its retry is no earlier delivery of it.
    """
    patience(WAIT_FOR_FIRST=0.5)
    task = consumer.task(body)
    message, before = consumer.send(task, retries=2), datetime.now(UTC)
    other = held(task, id_of(message), retries=retries)
    result = consumer.deliver(message)
    assert [round(turn, 1) for turn in turns] == [0.5]  # it has no ticket to check
    assert is_ignored(result, f"another delivery of {id_of(message)} runs; this one is sent again")
    again = consumer.message()
    assert id_of(again) == id_of(message)
    assert again.headers["retries"] == 2
    assert header_of(again) == MessageHeader(id_of(message), redelivered=redelivered)
    assert datetime.fromisoformat(again.headers["eta"]) - before >= timedelta(seconds=0.5)
    if end is Ignore:
        task.backend.mark_as_done(id_of(message), "its result")
    other.release()
    assert end in (result := consumer.deliver(again), type(result))


@pytest.mark.parametrize("moment", ["waits", "asks"])
def test_delivery_whose_ticket_becomes_valid_runs(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, turns: list[float], moment: str
) -> None:
    """The message of a retry may arrive before the run that sent it has left the lock to it.

    It checks its ticket while it waits, and is not taken for another message between two questions.
    """
    task = consumer.task(body, scope="queue_and_run")
    message = consumer.send(task)
    lock = key_locks(task, id_of(message)).handle(consumer.app.main, 60)
    assert lock.take_over(header_of(message).ticket)
    message.headers[HEADER] |= {"ticket": lock.ticket, "follows": lock.fence}
    holders = GuardedCall.holders

    def leave() -> None:
        lock.backend.run(lock.detach_steps(60, state=QUEUED))

    def leave_first(self: GuardedCall) -> list[Holder]:
        monkeypatch.setattr(GuardedCall, "holders", holders)
        leave()
        return holders(self)

    if moment == "waits":
        consumer.when["waiting"] = leave
    else:
        monkeypatch.setattr(GuardedCall, "holders", leave_first)
    assert consumer.deliver(message, redelivered=moment == "waits") == "ran"
    assert max(turns, default=0) <= BRIEF
    assert consumer.kinds() == ["waiting"] * (moment == "waits")
    assert is_free(task)


# Another instance.


def refusal(task: Any, why: str = "") -> str:
    (holder,) = key_locks(task).holders()
    why = why or f"lock {task.app.main!r} is held by {holder}."
    return f"Task {task.name} was not run: {why}"


def test_delivery_gives_way_to_one_that_got_a_permit_before(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw nothing of each other; the one with the lower fence runs."""
    task = consumer.task(body, concurrency=2)
    message, acquire = consumer.send(task), TaskLock.acquire

    def come_late(self: TaskLock, **how: Any) -> bool:
        monkeypatch.setattr(TaskLock, "acquire", acquire)
        consumer.when["waiting"] = held(task, id_of(message)).release
        return acquire(self, **how)

    monkeypatch.setattr(TaskLock, "acquire", come_late)
    assert consumer.deliver(message) == "ran"
    assert consumer.kinds() == ["waiting", "taken over"]
    assert is_free(task)


def test_of_two_deliveries_that_waited_only_one_runs(consumer: Consumer) -> None:
    """Though there are permits for both when their turn comes."""
    task = consumer.task(body, on_conflict="wait", concurrency=2, blocking_timeout=LONG)
    message, others = consumer.send(task), [held(task, str(number)) for number in range(2)]

    def come_free() -> None:
        others.pop().release()
        consumer.when["waiting"] = held(task, id_of(message)).release
        others.pop().release()

    consumer.when["waiting"] = come_free
    assert consumer.deliver(message) == "ran"
    assert consumer.kinds() == ["waiting", "waiting", "taken over"]
    assert is_free(task)


def test_duplicate_is_left_to_a_function(consumer: Consumer) -> None:
    """Which knows what it is about."""
    seen: list[Any] = []
    task = consumer.task(body, on_conflict=seen.append)
    held(task, "another")
    message = consumer.send(task, 1, kwargs={"two": 2})
    consumer.deliver(message)
    (one,) = seen
    assert (one.moment, one.task_id, one.args, one.kwargs, one.policy, one.when_sent) == (
        *("run", id_of(message), (1,), {"two": 2}, "callable", None),
    )
    assert (one.key, one.holder.task_id) == (task.app.main, "another")


@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 0.05}])
def test_duplicate_waits_for_its_time(
    consumer: Consumer, options: dict[str, Any], settings: Any
) -> None:
    """It is its own, or that of the alias."""
    if "blocking_timeout" not in options:
        entry = {**settings.LOCKS["locmem"], "BLOCKING_TIMEOUT": 0.05}
        settings.LOCKS = {**settings.LOCKS, "locmem": entry}
    task = consumer.task(body, on_conflict="wait", **options)
    held(task, "another")
    error = consumer.deliver(consumer.send(task))
    assert isinstance(error, TaskAlreadyRunning)
    assert str(error) == refusal(task)
    assert consumer.kinds() == ["waiting", "skipped"]
    assert consumer.notified[1][1]["policy"] == "wait"


# Holders that need a worker themselves.


def test_duplicate_waits_for_a_message_for_its_time(consumer: Consumer) -> None:
    """By the server's clock, however often it comes again; its last try is when that is over."""
    task = consumer.task(body, on_conflict="wait", blocking_timeout=40, countdown=30)
    held(task, "another", state=QUEUED)
    message, whens = consumer.send(task), []
    while isinstance(result := consumer.deliver(message), Retry):
        whens.append(result.when)
        message = consumer.message()
        message.headers[HEADER]["wait_until"] -= result.when * 1_000_000  # as if that had passed
    first, second = whens
    assert first == 30
    assert 10 - LONG < second <= 10
    assert isinstance(result, TaskAlreadyRunning)
    assert str(result) == refusal(task)


# Another task with the same id, which who sends them has chosen.


def own_id(consumer: Consumer) -> str:
    """Return an id that is no other test's, because the results in memory are of them all."""
    return f"job-{consumer.app.main}"


def twins(consumer: Consumer, task: Any, **options: Any) -> tuple[TaskLock, Any]:
    """Let a task run, and return its lock, and the message of another with its id."""
    first = consumer.send(task, task_id=own_id(consumer))
    lock = held(task, own_id(consumer), sent=repr(header_of(first).sent))
    return lock, consumer.send(task, task_id=own_id(consumer), **options)


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("policy", ["skip", "raise", "retry", "wait", "callable"])
def test_namesake_is_a_duplicate_without_a_result(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, policy: str, redelivered: bool
) -> None:
    """It does not wait for the one that runs, whose result is the one to store."""
    options = {"blocking_timeout": 0.05} if policy == "wait" else {}
    on_conflict = decide if policy == "callable" else policy
    task = consumer.task(body, on_conflict=on_conflict, concurrency=2, **options)
    running, message = twins(consumer, task)
    monkeypatch.setattr(task.backend, "store_result", pytest.fail)
    result = consumer.deliver(message, redelivered=redelivered)
    assert consumer.ended == ["ack"]
    if policy == "skip":
        assert result["skipped"]
    elif policy == "callable":
        assert result == "decided"
    else:
        assert isinstance(result, Ignore)
    running.ensure_held()
    again = consumer.message()
    assert (again is not None) is (policy == "retry")
    monkeypatch.undo()
    running.release()
    if again is not None:
        assert consumer.deliver(again) == "ran"
        assert task.AsyncResult(own_id(consumer)).result == "ran"


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_namesake_does_not_keep_its_chord_waiting(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """The chord is told, although nothing is stored."""
    task = consumer.task(body, on_conflict=policy)
    after = consumer.app.task(name=f"{task.name}-after")(body).si()
    after.freeze()
    _, message = twins(consumer, task, chord=after, group_id="group")
    monkeypatch.setattr(task.backend, "store_result", pytest.fail)
    told: list[str] = []
    monkeypatch.setattr(
        task.backend, "on_chord_part_return", lambda request, state, *_: told.append(state)
    )
    consumer.deliver(message)
    assert told == ["SUCCESS" if policy == "skip" else "FAILURE"]


@pytest.mark.parametrize("foreign", [False, True])
def test_delivery_is_the_same_task(consumer: Consumer, foreign: bool) -> None:
    """If it was sent at the same time; or if the broker says so, as for who says no time."""
    task = consumer.task(body)
    running, message = twins(consumer, task)
    if foreign:
        del message.headers[HEADER]
    else:
        message.headers[HEADER]["sent"] = float(key_locks(task).holders()[0].marks["sent"])
    consumer.when["waiting"] = running.release
    assert consumer.deliver(message, redelivered=foreign) == "ran"
    assert consumer.kinds() == ["waiting", "taken over"]


@pytest.mark.parametrize(
    ("ended", "zone", "proof"),
    [
        (0.001, "UTC", True),
        (-0.001, "UTC", False),
        (7200.001, "Europe/Helsinki", True),  # local time, if UTC is not that late
        (7199.0, "Europe/Helsinki", False),
        (None, "UTC", False),
    ],
)
def test_results_have_dates_of_several_kinds(
    settings: Any, ended: float | None, zone: str, proof: bool
) -> None:
    """Some without a time zone, and some have none; a wrong one would lose the task."""
    settings.USE_TZ, settings.TIME_ZONE = zone == "UTC", zone
    sent = 1767225600.0  # the start of 2026, a winter's day
    at = None if ended is None else datetime.fromtimestamp(sent + ended, UTC).replace(tzinfo=None)
    result = SimpleNamespace(state="SUCCESS", date_done=at)
    task = SimpleNamespace(ignore_result=False, AsyncResult=lambda task_id: result)
    assert (policies.key_locks.stored_state(task, "own", sent) == "SUCCESS") is proof
    assert policies.key_locks.stored_state(task, "own") == "PENDING"  # if its time is not known


def test_run_has_its_lease_and_tells_its_try(consumer: Consumer) -> None:
    """Also if it had to wait for another instance."""

    def look() -> Any:
        return locks["locmem"].holder(consumer.app.main)

    task = consumer.task(look, {"ignore_result": True}, on_conflict="wait", timeout=7)
    consumer.when["waiting"] = held(task, "another").release
    message = consumer.send(task, retries=3)
    holder = consumer.deliver(message)
    assert holder.marks["retries"] == "3"
    assert 5 < holder.ttl <= 7
    assert holder.task_id == id_of(message)


@pytest.mark.parametrize("most", [0, 2])
def test_duplicate_comes_again_so_often(consumer: Consumer, most: int) -> None:
    task = consumer.task(body, on_conflict="retry", max_retries=most)
    held(task, "another")
    message = consumer.send(task)
    for _ in range(most):
        assert isinstance(consumer.deliver(message), Retry)
        message = consumer.message()
    error = consumer.deliver(message)
    assert isinstance(error, TaskAlreadyRunning)
    why = f"lock {task.app.main!r} was held at each of {most + 1} attempts."
    assert str(error) == refusal(task, why)
    assert error.holder is not None
    assert consumer.message() is None


PROPERTIES = dict.fromkeys(["reply_to", "message_id", "correlation_id", "timestamp"], "1")
PROPERTIES |= {"priority": 7, "delivery_mode": 1}
CALL: dict[str, Any] = (
    {"compression": "gzip", "expires": 600, "time_limit": 6, "soft_time_limit": 5, "shadow": "name"}
    | {"ignore_result": True, "argsrepr": "(***)", "kwargsrepr": "{***}", "group_id": "group"}
    | {"group_index": 2, "stamped_headers": ["st"], "st": "amp"}
    | {"headers": {"theirs": 1, "x-death": "of this delivery"}}
)


@pytest.mark.parametrize("policy", ["retry", "wait", "park", "skip"])
@pytest.mark.parametrize("serializer", ["pickle", "yaml"])
def test_message_comes_again_as_it_was(
    consumer: Consumer, server: Any, patience: Any, stop: Any, serializer: str, policy: str
) -> None:
    """Also arguments that the task's own serializer can't encode, or that are to be hidden."""
    consumer.app.conf.update(accept_content=["json", "pickle", "yaml"], result_extended=False)
    task = consumer.task(body, on_conflict=policy, using="default")
    after = dict(consumer.app.task(name=f"{task.name}-after")(body).si())
    call = {"link": [after], "link_error": [after], "chain": [after], "chord": after} | CALL
    message = consumer.send(task, {1}, serializer=serializer, **call, **PROPERTIES)
    # To be skipped, it first waits for another delivery, and comes again if that takes long.
    holder = held(task, id_of(message) if policy == "skip" else "another")
    patience(WAIT_FOR_FIRST=BRIEF)
    if policy == "wait":
        stop()
    consumer.deliver(message)
    del message.headers["x-death"]
    if policy == "park":
        holder.release()
        Publisher(consumer.app).publish(locks["default"])
    again, new = consumer.message(), {"eta": None, HEADER: None}
    assert again.headers | new == message.headers | new
    assert {name: again.properties[name] for name in PROPERTIES} == PROPERTIES
    assert (again.content_type, again.payload) == (message.content_type, message.payload)


def test_duplicate_does_not_come_again_with_old_arguments(consumer: Consumer) -> None:
    """Newer ones have taken its place."""
    task = consumer.task(body, scope="queue", on_conflict={"queue": "supersede", "run": "retry"})
    held(task, "another")
    older, newer = consumer.send(task), consumer.send(task)
    result = consumer.deliver(older)
    assert result["reason"] == "superseded by newer arguments"
    assert result["holder"]["task_id"] == id_of(newer)
    assert consumer.notified[-1][1]["policy"] == "supersede"
    assert consumer.message() is None
    assert isinstance(consumer.deliver(newer), Retry)


@pytest.mark.parametrize("how", ["new", "redelivered", "reserved", "several", "waits"])
def test_lock_is_released_if_a_signal_comes_when_it_was_taken(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Such as that of a soft time limit, before the guard knows that it has the lock."""
    options: dict[str, Any] = {
        "reserved": {"scope": "queue_and_run"},
        "several": {"concurrency": 2},
        "waits": {"on_conflict": "wait"},
    }.get(how, {})
    task = consumer.task(body, **options)
    message = consumer.send(task)
    if how == "waits":
        consumer.when["waiting"] = held(task, "another").release

    def interrupted(method: Callable[..., bool]) -> Callable[..., bool]:
        def call(*args: Any, **kwargs: Any) -> bool:
            if method(*args, **kwargs):
                raise SoftTimeLimitExceeded
            return False

        return call

    for name in ("acquire", "take_over"):
        monkeypatch.setattr(TaskLock, name, interrupted(getattr(TaskLock, name)))
    result = consumer.deliver(message, redelivered=how == "redelivered")
    assert isinstance(result, SoftTimeLimitExceeded)
    assert is_free(task)


# When the worker is to stop.


@pytest.fixture
def stop(consumer: Consumer) -> Iterator[Callable[[], object]]:
    """Tell this process, as if it were a worker, that it is to stop."""
    news = {"sig": "TERM", "how": "Warm", "exitcode": 0}
    yield lambda: worker_shutting_down.send(sender="this one", **news)
    worker_init.send(sender=consumer)


@pytest.mark.parametrize(
    ("how", "guard"),
    [
        ("by a policy", {}),
        ("among several", {"concurrency": 2}),
        ("in the queue", {"scope": "queue"}),
        ("behind its id", {}),
    ],
)
def test_wait_ends_when_the_worker_is_to_stop(
    consumer: Consumer, stop: Any, how: str, guard: dict[str, Any]
) -> None:
    """The message goes back with its place, and runs when its turn comes."""
    task = consumer.task(body, on_conflict={"run": "wait"}, **guard)
    if how.endswith("its id"):
        first, message = twins(consumer, task)
        locks_of_others = [first]
    else:
        locks_of_others = [held(task) for _ in range(guard.get("concurrency", 1))]
        message = consumer.send(task)
    consumer.when["waiting"] = stop
    assert isinstance(consumer.deliver(message), Ignore)
    assert consumer.ended == ["ack"]
    again = consumer.message()
    assert id_of(again) == id_of(message)
    assert key_locks(task).holders()[0].waiters == 0
    if how == "in the queue":
        reservation = key_locks(task).backend.holder(header_of(again).lock)
        assert reservation is not None
        assert reservation.token_id == header_of(again).ticket
    for lock in locks_of_others:
        lock.release()
    assert consumer.deliver(again) == "ran"
    assert is_free(task)
    assert not list(locks["locmem"].holders(pattern=f"{consumer.app.main}*"))


@pytest.mark.parametrize("call", ["direct", "eager"])
def test_call_without_a_message_waits_on(consumer: Consumer, stop: Any, call: str) -> None:
    """A running task may have made it, and it can't be sent again."""
    task = consumer.task(body, on_conflict="wait", blocking_timeout=LONG)
    other = held(task)
    consumer.when["waiting"] = stop
    releasing = Background(lambda: release_for_a_waiter(other))
    assert (task() if call == "direct" else task.apply().get()) == "ran"
    releasing.outcome()
    assert consumer.message() is None


# When the task has left its lock itself.


@pytest.mark.parametrize("reads", [False, True])
def test_retry_after_a_downgrade_runs_alone(
    server: EmbeddedServer, consumer: Consumer, reads: bool
) -> None:
    """Once the readers that it let in have left."""
    key, seen = consumer.app.main, []
    reader = semaphore(key, 9)

    def work(task: Any) -> None:
        seen.append(state(key))
        if len(seen) == 1:
            task.lock.downgrade()
            assert not reads or Background(lambda: reader.acquire(blocking=False)).outcome()
            raise task.retry(countdown=0)

    task = consumer.task(work, {"bind": True}, using="default", scope="queue_and_run")
    assert isinstance(consumer.deliver(consumer.send(task)), Retry)
    if reads:
        delivery = Background(consumer.deliver)
        eventually(lambda: not delivery.is_alive() or waiters(key))
        assert seen == ["taken"]
        reader.release()
        delivery.outcome()
    for _ in range(5):  # it may have been sent again
        if (message := consumer.message()) is not None:
            consumer.deliver(message)
    assert seen == ["taken", "taken"]
    assert state(key) == "free"


@pytest.mark.parametrize("how", ["keeps", "release", "detach", "loses", "forks"])
def test_call_inside_a_run_passes_while_that_holds(
    server: EmbeddedServer, consumer: Consumer, how: str
) -> None:
    """Afterwards, and in a child, it meets the guard."""
    key, ran = consumer.app.main, []

    def work(task: Any, inner: bool = False) -> Any:
        def call() -> None:
            result = task(inner=True)
            assert bool(result and result["skipped"]) == (how != "keeps")

        if inner:
            return ran.append(how)
        if how in ("release", "detach"):
            getattr(task.lock, how)(*[20] * (how == "detach"))
        if how == "loses":
            locks["default"].force_release(key)
            assert not task.lock.owned()
        if how in ("release", "loses"):
            Background(lambda: held(task, "another")).outcome()
        assert in_child(call) if how == "forks" else call() is None
        return "left"

    task = consumer.task(work, {"bind": True}, using="default")
    assert consumer.deliver(consumer.send(task)) == "left"
    assert ran == ["keeps"] * (how == "keeps")
