"""The locks that belong to a key: each name stands for one thing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.exceptions import Retry
from django.test import override_settings

from django_redis_lock import locks
from django_redis_lock.celery import freeing
from django_redis_lock.celery.key_locks import HEADER, GuardedCall, MessageHeader, queued_since
from django_redis_lock.celery.options import make_options
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.support.arguments import check_name
from example_project.embedded import EmbeddedServer
from tests.celery.consumer import Consumer, body, header_of, held, id_of, key_locks, no_broker
from tests.tools import eventually

TASKS = ("shop.tasks.sync", "queued", "~", "~~", "a~~1", "t" * 512, "t" * 513, "a\nb")


def names_of(key: str) -> dict[Any, str]:
    """Return the names of all locks of a key, by what they stand for."""
    names: dict[Any, str] = {"run": GuardedCall(make_options({}, {}), None, None, key=key).name}
    for task in TASKS:
        of_key = GuardedCall(make_options({}, {}), SimpleNamespace(name=task), None, key=key)
        names |= {(task, number): name for number, name in enumerate(of_key.reservations)}
    return names


def test_no_key_gives_the_name_that_stands_for_something_else() -> None:
    """Whatever keys and tasks are called, also after the locks of other keys."""
    keys = {"a", "a~", "a~~", "~~~", "a~~run", "a~~1", "a~~queued:queued", "a:queued", "a#1"}
    keys |= {"k" * 250, "k" * 511, "k" * 512, "k" * 511 + "l", "k" * 510 + "~~"}
    keys |= {name for key in sorted(keys) for name in names_of(key).values()}
    found = defaultdict(set)
    for key in keys:
        for what, name in names_of(key).items():
            found[check_name(name)].add((key, what))
    assert [what for what in found.values() if len(what) > 1] == []
    assert GuardedCall(make_options({}, {}), None, None, key="import:7").name == "import:7"


@pytest.mark.parametrize("key", ["", "k" * 513, "a\0b"])
def test_key_that_is_no_name_is_refused_when_it_is_sent(consumer: Consumer, key: str) -> None:
    """Not by the worker, which would lose the message."""
    task = consumer.task(body, key="{args[0]}", scope="queue")
    with pytest.raises(ValueError, match="A lock's name"):
        task.delay(key)
    assert consumer.message() is None


@pytest.mark.parametrize(
    ("scope", "policy"), [("queue", "skip"), ("queue", "supersede"), ("queue_and_run", "skip")]
)
def test_each_task_of_a_key_has_a_place_of_its_own(
    consumer: Consumer, scope: str, policy: str
) -> None:
    """A call is no duplicate of another task's message, and the runs follow each other."""

    def other() -> str:
        return "other"

    one, two = (
        consumer.task(each, scope=scope, on_conflict={"queue": policy}) for each in (other, body)
    )
    first, second = consumer.send(one), consumer.send(two)
    assert id_of(first) != id_of(second)
    if policy == "skip":
        assert (one.delay().id, two.delay().id) == (id_of(first), id_of(second))
        assert consumer.message() is None
    assert consumer.deliver(first) == "other"
    assert consumer.deliver(second) == "ran"
    assert not list(locks["locmem"].holders(f"{consumer.app.main}*"))


# Messages that are no longer superseded.

SUPERSEDE: dict[str, Any] = {"scope": "queue", "on_conflict": "supersede"}


def waiting(consumer: Consumer) -> set[str | None]:
    """Return the tasks whose messages have a place."""
    held = locks["locmem"].holders(f"{consumer.app.main}*")
    return {one.task_id for one in held if one.marks.get("state") == "queued"}


def is_superseded(result: Any) -> bool:
    return isinstance(result, dict) and result["reason"] == "superseded by newer arguments"


def test_newer_message_waits_behind_one_that_has_waited_long_enough(consumer: Consumer) -> None:
    """There it is superseded in turn, however long it has waited, and no more than two wait."""
    task = consumer.task(body, **SUPERSEDE, supersede_for=0)
    first, second, third = (consumer.send(task) for _ in range(3))
    assert waiting(consumer) == {id_of(first), id_of(third)}
    assert consumer.deliver(first) == "ran"
    assert is_superseded(consumer.deliver(second))
    fourth = consumer.send(task)
    assert waiting(consumer) == {id_of(third), id_of(fourth)}
    assert [consumer.deliver(each) for each in (third, fourth)] == ["ran", "ran"]
    assert not waiting(consumer)


@pytest.mark.parametrize("countdown", [0, 0.3])
def test_work_that_is_superseded_again_and_again_gets_older(
    consumer: Consumer, countdown: float
) -> None:
    """It counts from when its first message was due, until one is spared."""
    task = consumer.task(body, **SUPERSEDE, supersede_for=0.3)
    sent = []

    def one_is_spared() -> bool:
        sent.append(consumer.send(task, countdown=countdown))
        return len(waiting(consumer)) > 1

    eventually(one_is_spared)
    assert [consumer.deliver(each) for each in sent[-2:]] == ["ran", "ran"]


def test_message_that_comes_again_is_spared_and_gets_older(consumer: Consumer) -> None:
    """Another instance runs; it waits as long as if it had stayed in the queue."""
    times: dict[str, Any] = {"countdown": 30, "queue_timeout": 40, "supersede_for": 0}
    task = consumer.task(body, **SUPERSEDE, **times)
    running, name = held(task, "another"), key_locks(task).reservations[0]
    first = consumer.send(task)
    before = locks["locmem"].holder(name)
    assert isinstance(consumer.deliver(first), Retry)
    first, after = consumer.message(), locks["locmem"].holder(name)
    assert before is not None
    assert after is not None
    assert header_of(first).ticket == after.token_id != before.token_id
    assert (header_of(first).lock, header_of(first).attempts) == (name, 1)
    assert after.ttl is not None
    assert 65 < after.ttl <= 70
    assert queued_since(after) == pytest.approx(queued_since(before), abs=1e-5)
    second = consumer.send(task)
    assert waiting(consumer) == {id_of(first), id_of(second)}
    running.release()
    assert [consumer.deliver(each) for each in (first, second)] == ["ran", "ran"]


def test_message_that_is_not_due_has_not_waited(consumer: Consumer) -> None:
    """It is superseded by one that is due at the same time or before, however old the work is."""
    task = consumer.task(body, **SUPERSEDE, supersede_for=0)
    for delay in (60, 60, 0):
        latest = consumer.send(task, countdown=delay)
        assert waiting(consumer) == {id_of(latest)}
    late = consumer.send(task, countdown=60)
    assert waiting(consumer) == {id_of(latest), id_of(late)}
    soon = consumer.send(task)
    assert waiting(consumer) == {id_of(latest), id_of(soon)}


@pytest.mark.parametrize("how", ["behind it", "in its place", "without the place"])
def test_newer_arguments_are_not_followed_by_older_ones(consumer: Consumer, how: str) -> None:
    """What is superseded, when the newer one is sent or else has begun, is on record by itself."""
    times = {"supersede_for": 0} if how == "behind it" else {}
    task = consumer.task(body, **SUPERSEDE, **times)
    older, newer = consumer.send(task), consumer.send(task)
    if how == "without the place":
        locks["locmem"].force_release(key_locks(task).reservations[0])
    assert consumer.deliver(newer) == "ran"
    assert not waiting(consumer)
    assert is_superseded(consumer.deliver(older))
    assert not list(locks["locmem"].holders(f"{consumer.app.main}*"))


def test_newer_message_that_waits_behind_one_that_is_due_later(consumer: Consumer) -> None:
    task = consumer.task(body, **SUPERSEDE)
    late = consumer.send(task, countdown=60)
    *_, newest = (consumer.send(task, expires=expires) for expires in (60, 70))
    assert consumer.deliver(newest) == "ran"
    assert is_superseded(consumer.deliver(late))


def test_message_that_is_superseded_keeps_the_result_of_a_newer_one(consumer: Consumer) -> None:
    """Who sent both has given them one id."""

    def fail() -> None:
        raise LookupError("newer")

    task, own_id = consumer.task(fail, **SUPERSEDE), f"job-{consumer.app.main}"
    older, newer = (consumer.send(task, task_id=own_id) for _ in range(2))
    assert isinstance(consumer.deliver(newer), LookupError)
    assert is_superseded(consumer.deliver(older))
    assert task.AsyncResult(own_id).state == "FAILURE"


def test_message_that_has_ended_keeps_none_from_waiting(consumer: Consumer) -> None:
    """Its place is taken before that of a message that still waits."""
    task = consumer.task(body, **SUPERSEDE, supersede_for=0)
    ended, second = consumer.send(task), consumer.send(task)
    task.backend.store_result(id_of(ended), None, "REVOKED")
    third = consumer.send(task)
    assert waiting(consumer) == {id_of(second), id_of(third)}
    assert [consumer.deliver(each) for each in (second, third)] == ["ran", "ran"]


# What is dropped, is dropped on the record of who does the work.


@pytest.fixture
def one(server: EmbeddedServer) -> Iterator[dict[str, Any]]:
    """An entry of LOCKS on a server without replicas, which is the default one."""
    entry = {**locks.settings["default"], "LOCATION": server.url()}
    with override_settings(LOCKS={"default": entry}):
        yield entry


@pytest.mark.parametrize("how", ["released", "flushed", "not sent", "expires sooner", "no replica"])
def test_older_message_runs_if_nothing_newer_does_its_work(
    consumer: Consumer, one: dict[str, Any], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A place that is gone, or that a newer message could not take, is no evidence."""
    task, newer = consumer.task(body, **SUPERSEDE, using="default"), None
    older = consumer.send(task, 1)
    match how:
        case "released":
            locks["default"].force_release(key_locks(task).reservations[0])
        case "flushed":
            with redis.Redis.from_url(one["LOCATION"]) as client:
                client.flushall()
        case "not sent":
            with monkeypatch.context() as patched, pytest.raises(ConnectionError):
                patched.setattr(consumer.app.amqp, "send_task_message", no_broker)
                task.delay(2)
        case "expires sooner":
            newer = consumer.send(task, 2, expires=60)
        case "no replica":
            options = {"REPLICAS": 1, "REPLICA_TIMEOUT": 0.05}
            strict = override_settings(LOCKS={"default": {**one, "OPTIONS": options}})
            with strict, pytest.raises(LockUnavailable):
                task.delay(2)
    assert consumer.deliver(older) == "ran"
    assert newer is None or consumer.deliver(newer) == "ran"
    assert not list(locks["default"].holders())


@pytest.mark.parametrize(
    ("older", "newer", "ends"), [(60, 70, "superseded"), (60, None, "superseded"), (70, 60, "ran")]
)
def test_only_what_lasts_longer_supersedes(
    consumer: Consumer, older: float | None, newer: float | None, ends: str
) -> None:
    """A message that expires before an older one does not take its work away."""
    task = consumer.task(body, **SUPERSEDE)
    messages = [consumer.send(task, expires=expires) for expires in (older, older, newer)]
    first, *others = [consumer.deliver(each) for each in messages]
    assert is_superseded(first)  # both expire together
    assert is_superseded(others[0]) is (ends == "superseded")
    assert others[1] == "ran"
    assert not waiting(consumer)


NUMBERS = ["x", [], -1, True, float("nan"), float("inf"), 2**63, 10**400]
TEXTS = [7, {}, "a\n", "\ud800", "k" * 513]
MALFORMED: dict[str, list[Any]] = {
    "task_id": [None, "of another task"],
    **dict.fromkeys(("attempts", "follows", "sent", "wait_until", "parked"), NUMBERS),
    **dict.fromkeys(("lock", "using", "supersedes"), TEXTS),
    "ticket": [*TEXTS, "of no lock"],
    "queued": [[], [1], "abc", {}, 0, ["a", "b"], ["a", "b", 1], ["", "b", "c"], ["a\n", "b", "c"]],
    "duplicate_of": [5, [1], "", {"task_id": "first"}],
    "redelivered": [1],
}


@pytest.mark.parametrize(("field", "value"), [(a, b) for a in MALFORMED for b in MALFORMED[a]])
def test_a_malformed_header_counts_as_none(consumer: Consumer, field: str, value: Any) -> None:
    """The task runs as one without it; nor does it trouble the end of a message that is dropped."""
    assert set(MessageHeader.__dataclass_fields__) == {*MALFORMED}
    message = consumer.send(consumer.task(body, scope="queue", on_conflict="supersede"))
    message.headers[HEADER] = {**MessageHeader(id_of(message)).as_headers()[HEADER], "news": 1}
    assert header_of(message) == MessageHeader(id_of(message))
    message.headers[HEADER][field] = value
    assert header_of(message) == MessageHeader("")
    freeing._on_dropped(message)
    assert consumer.deliver(message) == "ran"
