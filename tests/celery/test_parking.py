"""Tasks that wait in the queue of their lock, and hold no worker meanwhile."""

from __future__ import annotations

import secrets
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
from amqp.exceptions import ChannelError
from celery.exceptions import Ignore, Retry
from django.conf import settings
from django.core.signing import Signer
from django.test import override_settings
from kombu.exceptions import OperationalError

from django_redis_lock import Waiter, lock, locks, semaphore
from django_redis_lock.celery import TaskAlreadyRunning, parked, polling, receiving
from django_redis_lock.celery import outbox as outbox_module
from django_redis_lock.celery.outbox import PARKED, Publisher, outbox_of, sealed
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol.calls import ask
from django_redis_lock.transport.parking import Restore
from example_project.embedded import EmbeddedServer, free_port
from tests.apps.celery.app import SCOPES
from tests.celery.consumer import Consumer, body, header_of, held, id_of
from tests.tools import counted, eventually


@pytest.fixture(autouse=True)
def client(
    server: EmbeddedServer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[redis.Redis]:
    """A plain client of the lock server. Who asks for a look gets one at once."""
    monkeypatch.setattr(polling, "poll_soon", lambda using: look(consumer))
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        yield client


def parking(consumer: Consumer, function: Any = body, **options: Any) -> Any:
    return consumer.task(function, **{"using": "default", "on_conflict": "park", **options})


def waiting(consumer: Consumer) -> list[Waiter]:
    return locks["default"].waiting(consumer.app.main)


def parks(consumer: Consumer, message: Any, **delivery: bool) -> bool:
    """Deliver a message; return whether it was parked."""
    before = consumer.kinds().count("parked")
    outcome = consumer.deliver(message, **delivery)
    return isinstance(outcome, Ignore) and consumer.kinds().count("parked") > before


def parked_messages(consumer: Consumer, task: Any, most: int) -> list[Any]:
    """Send a task so often, with a number each; return the messages, all of which are parked."""
    messages = [consumer.send(task, number) for number in range(most)]
    assert [parks(consumer, each) for each in messages] == [True] * most
    return messages


def look(consumer: Consumer) -> float:
    """Do as a worker does every two seconds; return when the next look is due."""
    publisher, due = Publisher(consumer.app), 0.0
    while not due:
        due, found = publisher.publish(locks["default"], 0)
        due = 0.0 if publisher.attend(locks["default"], found) else due
    return due


def parked_key(consumer: Consumer, rest: str) -> str:
    return f"{locks['default'].key_prefix}-parked:{outbox_of(consumer.app)}{rest}"


def outbox(client: redis.Redis, consumer: Consumer) -> dict[str, list[str]]:
    return {
        "messages": client.hkeys(parked_key(consumer, f"::{consumer.app.main}")),
        "outbox": client.zrange(parked_key(consumer, ":outbox"), 0, -1),
    }


def make_due(client: redis.Redis, consumer: Consumer) -> None:
    """Make due what is to be tried again later."""
    members = dict.fromkeys(outbox(client, consumer)["outbox"], 0)
    client.zadd(parked_key(consumer, ":outbox"), members)


EMPTY: dict[str, list[str]] = {"messages": [], "outbox": []}


def test_task_over_the_limit_waits_at_no_worker_and_comes_back(
    consumer: Consumer, client: redis.Redis
) -> None:
    task = parking(consumer)
    before = parked[task.name]
    with lock(consumer.app.main):
        message = consumer.send(task)
        assert parks(consumer, message)
        assert consumer.ended == ["ack"]
        assert consumer.message() is None
        result = task.AsyncResult(id_of(message))
        assert (result.state, result.info) == (PARKED, {"key": consumer.app.main, "position": 1})
        (waiter,) = waiting(consumer)
        assert (waiter.parked, waiter.task_id) == (True, id_of(message))
        assert waiter.since is not None
        assert look(consumer) > 0
    assert outbox(client, consumer)["outbox"]
    look(consumer)
    assert outbox(client, consumer) == EMPTY
    assert (locks["default"].holder(consumer.app.main) or waiter).task_id == id_of(message)
    assert consumer.deliver() == "ran"
    assert result.state == "SUCCESS"
    assert parked[task.name] == before + 1
    assert locks["default"].holder(consumer.app.main) is None
    assert not client.keys("*-queue:*")


def test_release_of_a_run_publishes_the_next_at_once(
    consumer: Consumer, client: redis.Redis
) -> None:
    task = parking(consumer)
    holder = held(task)
    messages = parked_messages(consumer, task, 3)
    holder.release()
    look(consumer)
    for message in messages:
        came = consumer.message()
        assert id_of(came) == id_of(message)
        assert consumer.message() is None
        assert consumer.deliver(came) == "ran"
    assert outbox(client, consumer) == EMPTY


def test_message_is_parked_once(consumer: Consumer, client: redis.Redis) -> None:
    """However often it is delivered, also when it has been handed off, and published."""
    task = parking(consumer)
    with lock(consumer.app.main):
        message = consumer.send(task)
        assert parks(consumer, message)
        assert parks(consumer, message, redelivered=True)
        assert len(waiting(consumer)) == 1
    for _ in range(2):
        assert isinstance(consumer.deliver(message, redelivered=True), Ignore)
        look(consumer)
    assert consumer.deliver() == "ran"
    assert consumer.message() is None
    assert isinstance(consumer.deliver(message, redelivered=True), Ignore)  # it has succeeded


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
def test_success_counts_with_a_ticket_of_an_older_copy(
    consumer: Consumer, client: redis.Redis, scope: str, again: bool
) -> None:
    """A message that is delivered again, or was parked, when the server has lost what followed."""
    task = parking(consumer, scope=scope, on_conflict={"run": "park"})
    with nullcontext() if again else lock(consumer.app.main):
        message = consumer.send(task)
        assert again or parks(consumer, message)
    look(consumer)
    message = message if again else consumer.message()
    copy = {key: client.execute_command("DUMP", key, NEVER_DECODE=True) for key in client.keys("*")}
    assert consumer.deliver(message) == "ran"
    client.flushdb()
    for key, value in copy.items():
        client.restore(key, 60_000, value)
    assert isinstance(consumer.deliver(message, redelivered=again), Ignore)
    assert not list(locks["default"].holders(f"{consumer.app.main}*"))


def test_what_a_broker_refuses_stays_in_the_outbox(
    consumer: Consumer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    def refuse(publisher: Publisher) -> None:
        raise OperationalError("no broker")

    task = parking(consumer)
    with monkeypatch.context() as patch:
        with lock(consumer.app.main):
            message = consumer.send(task)
            assert parks(consumer, message)
        patch.setattr(Publisher, "_open", refuse)
        look(consumer)
        assert f"Could not send parked task {id_of(message)}; retrying" in log.text
    look(consumer)
    assert consumer.message() is None  # who failed has ten seconds
    make_due(client, consumer)
    look(consumer)
    assert consumer.deliver() == "ran"
    assert outbox(client, consumer) == EMPTY


@pytest.mark.parametrize("beyond", ["raise", "skip", "retry"])
def test_limit_of_the_queue(consumer: Consumer, beyond: str) -> None:
    task = parking(consumer, queue_limit=1, beyond=beyond)
    with lock(consumer.app.main):
        assert parks(consumer, consumer.send(task))
        outcome = consumer.deliver(consumer.send(task))
        if beyond == "raise":
            assert isinstance(outcome, TaskAlreadyRunning)
            assert "full (queue_limit=1)" in str(outcome)
        elif beyond == "skip":
            assert "full (queue_limit=1)" in outcome["reason"]
            assert consumer.notified[-1][1]["policy"] == "skip"
        else:
            assert isinstance(outcome, Retry)
            assert header_of(consumer.message()).attempts == 1
        assert len(waiting(consumer)) == 1


def test_newest_arguments_take_the_place_of_the_oldest(
    consumer: Consumer, client: redis.Redis
) -> None:
    seen: list[str] = []
    on_conflict = {"queue": "supersede", "run": "park"}

    def see(what: str) -> None:
        seen.append(what)

    task = parking(consumer, see, scope="queue", on_conflict=on_conflict)
    other = parking(consumer, body)
    with lock(consumer.app.main):
        old = consumer.send(task, "old")
        assert parks(consumer, old)
        assert parks(consumer, consumer.send(other))
        new = consumer.send(task, "new")
        assert parks(consumer, new)
        assert waiting(consumer)[0].task_id == id_of(new)
        look(consumer)
        came = consumer.message()
        assert id_of(came) == id_of(old)
        assert consumer.deliver(came)["reason"] == "superseded by newer arguments"
        assert len(waiting(consumer)) == 2
    look(consumer)
    assert consumer.deliver() is None
    assert seen == ["new"]
    assert consumer.deliver() == "ran"
    assert not list(locks["default"].holders(f"{consumer.app.main}*"))


@pytest.mark.parametrize("scope", SCOPES)
def test_reservation_of_each_scope_lasts_until_the_run(
    consumer: Consumer, client: redis.Redis, scope: str
) -> None:
    task = parking(consumer, scope=scope, on_conflict={"run": "park"}, concurrency=1)
    message = consumer.send(task)
    if scope == "queue_and_run":  # its reservation has ended
        locks["default"].force_release(consumer.app.main)
    with lock(consumer.app.main):
        assert parks(consumer, message)
        reserved = list(locks["default"].holders(f"{consumer.app.main}~~*"))
        assert len(reserved) == (scope == "queue")
    look(consumer)
    came = consumer.message()
    assert (header_of(came).queued is not None) == (scope == "queue")
    assert consumer.deliver(came) == "ran"
    assert not list(locks["default"].holders(f"{consumer.app.main}*"))


def test_message_whose_key_has_changed_gives_up_its_place(
    consumer: Consumer, client: redis.Redis
) -> None:
    """The next one in the old queue is published at once, before any worker looks."""

    def other() -> str:
        return "other"

    keys = [consumer.app.main]
    task, behind = parking(consumer, key=lambda *args: keys[0]), parking(consumer, other)
    with lock(consumer.app.main):
        assert parks(consumer, consumer.send(task))
        assert parks(consumer, consumer.send(behind))
    look(consumer)
    keys[0] += "-new"
    with lock(keys[0]):
        assert parks(consumer, consumer.message())
        assert consumer.deliver() == "other"
        assert locks["default"].holder(consumer.app.main) is None
    look(consumer)
    assert consumer.deliver() == "ran"
    assert not list(locks["default"].holders(f"{consumer.app.main}*"))


def test_alias_that_cannot_park_is_refused(consumer: Consumer) -> None:
    task = parking(consumer, using="locmem")
    with lock(consumer.app.main, using="locmem"):
        outcome = consumer.deliver(consumer.send(task))
    assert isinstance(outcome, InvalidLockBackend)
    assert "LOCKS['locmem'] is a LocMemLockBackend" in str(outcome)


@pytest.mark.parametrize("scope", SCOPES)
def test_lock_that_comes_free_meanwhile_is_taken(
    consumer: Consumer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    task = parking(consumer, scope=scope, on_conflict={"run": "park"})
    message = consumer.send(task)
    if scope == "queue_and_run":  # its reservation has ended
        locks["default"].force_release(consumer.app.main)
    holder = lock(consumer.app.main)
    holder.acquire()
    monkeypatch.setattr(outbox_module, "_store_state", lambda *_: holder.release())
    assert consumer.deliver(message) == "ran"
    assert outbox(client, consumer) == EMPTY
    assert not list(locks["default"].holders(f"{consumer.app.main}*"))


def test_messages_that_are_deleted_from_the_queue_are_sent_again(
    consumer: Consumer, client: redis.Redis
) -> None:
    """Whether one is, or the whole queue."""
    task = parking(consumer)
    process = f"@{outbox_of(consumer.app)}:{consumer.app.main}"
    keys = [f"{locks['default'].key_prefix}-{kind}:{process}" for kind in ("tokens", "waiters")]
    with lock(consumer.app.main):
        messages = parked_messages(consumer, task, 3)
        (first,) = client.zrange(keys[1], 0, 0)
        client.zrem(keys[1], first)
        client.hdel(keys[0], str(first).split()[0])
        client.zadd(parked_key(consumer, ":locks"), {consumer.app.main: 0})  # as after two seconds
        look(consumer)
        assert parks(consumer, consumer.message())
        assert [one.task_id for one in waiting(consumer)][-1] == id_of(messages[0])
        client.delete(f"{locks['default'].key_prefix}-queue:{consumer.app.main}", *keys)
    client.zadd(parked_key(consumer, ":locks"), {consumer.app.main: 0})
    look(consumer)
    assert [consumer.deliver() for _ in messages] == ["ran"] * 3
    assert outbox(client, consumer) == EMPTY


def deploy(consumer: Consumer, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Consumer:
    """Start a worker with other options; return it."""
    monkeypatch.setattr(outbox_module, "FAMILY", secrets.token_hex(4))
    outbox_module.worker_began()
    new = Consumer(consumer.app.main)
    parking(new, **options)
    return new


@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [(3, 1, 1), (1, 3, 3), (3, 2, 2), (1, lambda **_: 2, 2), (lambda **_: 0, lambda **_: 2, 2)],
)
def test_limit_is_that_of_the_worker_that_began_last(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, before: Any, after: Any, runs: int
) -> None:
    """One that began before does not overwrite it, also if it parks more."""
    outbox_module.worker_began()
    name, began = consumer.app.main, outbox_module._began[0]
    task = parking(consumer, concurrency=before)
    holders = [semaphore(name, 3) for _ in range(3)] if before != 1 else [lock(name)]
    assert all(holder.acquire(blocking=False) for holder in holders)
    parked_messages(consumer, task, 4)
    new = deploy(consumer, monkeypatch, concurrency=after)
    look(new)
    monkeypatch.setattr(outbox_module, "FAMILY", "old")
    monkeypatch.setattr(outbox_module, "_began", [began])
    assert parks(consumer, consumer.send(task, 4))
    look(consumer)
    for holder in holders:
        holder.release()
    look(new)
    assert [new.message() is not None for _ in range(4)] == [True] * runs + [False] * (4 - runs)
    new.close()


def serve(tenant: str) -> str:
    return "ran"


def test_limits_of_functions_are_asked_for_again(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    """With the arguments of the first message. If one fails, the limit stays as it is."""
    limits, name = {"acme": 0}, consumer.app.main
    task = parking(consumer, serve, concurrency=lambda tenant: limits[tenant])
    assert all(parks(consumer, consumer.send(task, "acme")) for _ in range(3))
    with lock(name, blocking_timeout=1):  # who has a limit of 0 is in nobody's way
        pass
    look(consumer)
    assert consumer.message() is None
    limits["acme"] = 2
    look(consumer)
    first = consumer.message()
    assert consumer.message()
    assert consumer.message() is None
    del limits["acme"]
    look(consumer)
    assert "Could not compute the concurrency" in log.text
    limits["acme"] = 2
    assert consumer.deliver(first) == "ran"
    assert consumer.message()


POISON = {
    "no object": "[]",
    "no signature": '{"lock": "x"}',
    "no text": b"\xff\xfe:" + b"x" * 43,
    "empty": "",
    "signed, and no JSON": Signer(salt="django_redis_lock.parked").sign("{"),
    "signed, and no object": sealed([]),  # type: ignore[arg-type]
    "of another lock": sealed({"lock": "another", "token": "1" * 48}),
}


@pytest.mark.parametrize("text", POISON.values(), ids=POISON)
def test_poison_is_put_aside_and_the_rest_goes_on(
    consumer: Consumer, server: EmbeddedServer, log: Any, text: Any
) -> None:
    task, name, token = parking(consumer), consumer.app.main, "1" * 48
    with redis.Redis.from_url(server.url()) as client, lock(name):
        assert parks(consumer, consumer.send(task))
        client.hset(parked_key(consumer, f"::{name}"), token, text)
        for each in (f"{token} {name}", b"\xff x", "x", b"1 \xff"):
            client.zadd(parked_key(consumer, ":outbox"), {each: 0})
        client.zadd(parked_key(consumer, ":locks"), {b"\xff": 0})
        look(consumer)
        assert client.hlen(parked_key(consumer, ":aside")) == 5
    look(consumer)
    assert consumer.deliver() == "ran"
    assert log.text.count("and set it aside") == 1


@pytest.fixture
def stranger(consumer: Consumer) -> Iterator[Consumer]:
    """A worker of the same broker with other tasks."""
    stranger = Consumer(f"{consumer.app.main}-other")
    yield stranger
    stranger.close()


@pytest.mark.parametrize("other", ["another key", "an unknown task"])
def test_message_of_other_workers_is_left_to_them(
    consumer: Consumer, stranger: Consumer, client: redis.Redis, settings: Any, other: str
) -> None:
    """It has its lock for ten seconds, is put aside after an hour, and can be put back."""
    task, backend, name = parking(consumer), locks["default"], consumer.app.main
    worker = consumer if other == "another key" else stranger
    keys = {kind: parked_key(consumer, f":{kind}") for kind in ("troubles", "aside")}
    with lock(name):
        assert parks(consumer, consumer.send(task))

    def meet(seconds: float) -> None:
        """Let a worker meet it so long after the first one that could not read it."""
        for token in client.hkeys(keys["troubles"]):
            client.hset(keys["troubles"], token, round((time.time() - seconds) * 1000))
        make_due(client, consumer)
        with override_settings(SECRET_KEY="x" * (worker is consumer) or settings.SECRET_KEY):
            look(worker)

    for seconds in (0, 9):
        meet(seconds)
        assert backend.holder(name) is not None
    meet(11)
    assert backend.holder(name) is None
    assert client.hlen(keys["aside"]) == 0
    meet(3601)
    assert (client.hlen(keys["aside"]), outbox(client, consumer)) == (1, EMPTY)
    assert backend.run(ask(Restore(outbox_of(consumer.app), name))) == 1
    look(consumer)
    assert consumer.deliver() == "ran"
    assert not client.keys(parked_key(consumer, "*"))


def test_what_a_broker_returns_gives_its_lock_to_the_next(
    consumer: Consumer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    """It is tried again every minute, and told of once."""
    task, send, away = parking(consumer), Publisher._send, [True]

    def publish(publisher: Publisher, message: Any) -> None:
        if away and message["id"] == id_of(first):
            raise ChannelError("NO_ROUTE")
        send(publisher, message)

    monkeypatch.setattr(Publisher, "_send", publish)
    with lock(consumer.app.main):
        first, _ = parked_messages(consumer, task, 2)
    for _ in range(2):
        look(consumer)
        make_due(client, consumer)
    assert consumer.deliver() == "ran"
    assert log.text.count("and will retry: NO_ROUTE") == 1
    away.clear()
    look(consumer)
    assert consumer.deliver() == "ran"
    assert outbox(client, consumer) == EMPTY


def test_revoked_task_is_sent_to_who_drops_it(consumer: Consumer, client: redis.Redis) -> None:
    """That costs as much as is revoked, and not as much as is parked, nor do tasks that are not."""
    task, publisher = parking(consumer), Publisher(consumer.app)
    with lock(consumer.app.main):
        messages = parked_messages(consumer, task, 3)
        with counted(client) as counts:
            ids = [*map(str, range(99)), id_of(messages[1]), *map(str, range(200))]
            publisher.unpark_revoked(locks["default"], ids)
        assert sum(counts.values()) < 340
        look(consumer)
        assert id_of(consumer.message()) == id_of(messages[1])
        assert [one.task_id for one in waiting(consumer)] == [id_of(messages[n]) for n in (0, 2)]


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "PARKED"])
def test_reservation_of_a_task_that_has_ended_is_given_up(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """As after a failover to a copy that is older than the end of the task."""
    task = parking(consumer)
    monkeypatch.setattr(outbox_module, "OLD", 0.0)
    with lock(consumer.app.main):
        messages = parked_messages(consumer, task, 2)
    look(consumer)
    assert id_of(consumer.message()) == id_of(messages[0])  # and is lost
    task.backend.store_result(id_of(messages[0]), None, state)
    look(consumer)
    look(consumer)
    came = consumer.message()
    assert (came and id_of(came)) == (id_of(messages[1]) if state != "PARKED" else None)


def test_backlogs_of_tenants_are_served_in_turn(consumer: Consumer) -> None:
    """However many tasks one of them sends, and each in its own order."""
    task, served = parking(consumer, turns="{args[0][0]}"), []
    with lock(consumer.app.main):
        for text in ("a1", "a2", "a3", "b1", "c1", "b2"):
            assert parks(consumer, consumer.send(task, text))
    look(consumer)
    while came := consumer.message():
        served += came.payload[0]
        consumer.deliver(came)
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_alias_whose_server_is_down_delays_no_other(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    down = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    task = consumer.task(body, using="default", on_conflict="park")
    with override_settings(LOCKS={"down": down, **settings.LOCKS}):
        polling._on_init(sender=consumer)
        polling.Pollers(consumer).start(consumer)
        with lock(consumer.app.main):
            consumer.deliver(consumer.send(task))
        eventually(consumer.message, "the message")
        polling._end_pollers()


def test_message_of_a_lost_connection_is_left_to_its_next_delivery() -> None:
    """A child that ran it as well would run it twice."""
    ran, consumer = list[str](), SimpleNamespace(connection="new")
    done = deque((each, each, False, None) for each in ("lost", "new"))
    event = SimpleNamespace(recv=lambda *_: b"")
    parker: Any = SimpleNamespace(_consumer=consumer, _done=done, event=event, _to_pool=ran.append)
    receiving._Parker.finish(parker)
    assert ran == ["new"]


@pytest.mark.parametrize(
    ("message", "is_new"),
    [({}, True), ({"eta": "later"}, False), ({"expires": "soon"}, False), ({"again": True}, False)],
)
def test_what_is_parked_as_it_is_received(
    consumer: Consumer, message: dict[str, Any], is_new: bool
) -> None:
    """Not what the worker holds back, may drop, or has had before."""
    task_id, again = str(uuid.uuid4()), message.pop("again", False)
    known = {"eta": None, "expires": None, "content_type": "application/json", **message}
    delivery = {"redelivered": again}
    about = {"task": parking(consumer), "id": task_id, "request_dict": {}, **known}
    request = SimpleNamespace(delivery_info=delivery, **about)
    assert receiving._is_new(request) is is_new


def test_all_of_many_locks_are_attended_to() -> None:
    """A poll reads some, and the next goes on after them."""
    publisher = MagicMock(attend=lambda *_: False)
    about = {"_using": "default", "_revoked": frozenset(), "_knows_all": False}
    poller: Any = SimpleNamespace(_publisher=publisher, _skip=0, **about)
    for skip, found in ((0, polling.LOCKS_AT_ONCE), (16, 3), (0, 3)):
        publisher.publish.return_value = 2.0, [["name"]] * found
        poller._due = 0.0
        polling.OutboxPoller._poll(poller)
        assert publisher.publish.call_args.args[1] == skip
