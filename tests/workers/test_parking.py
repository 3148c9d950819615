"""Parked tasks while a child, a worker or their lock server is killed at each step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import redis
from django.test import override_settings

from django_redis_lock import locks
from django_redis_lock.celery.key_locks import RECEIVED
from example_project.embedded import EmbeddedServer
from tests.apps.celery.parking import (
    CHILD,
    HOLD,
    QUEUE_NAME,
    STEPS,
    STORED,
    WORKER,
    app,
    brief,
    odd,
    plain,
    tasks,
)
from tests.chaos.parked import Fleet, check, deliver_again, fleet_of, history, missing
from tests.settings import REDIS, server_url
from tests.tools import eventually
from tests.tools.celery_worker import WAIT, disconnect, events, go, started

SERVER = "server"


@pytest.fixture(scope="module")
def fleet(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    with fleet_of(tmp_path_factory.mktemp("workers")) as fleet:
        entry = {"BACKEND": REDIS, "LOCATION": fleet.lock_server.url()}
        with override_settings(LOCKS={"default": entry}):
            yield fleet
            locks.reset()
    disconnect(app)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[redis.Redis]:
    """The database through which tasks and tests talk, empty, while a worker runs."""
    fleet.mend(1)
    eventually(lambda: is_idle(fleet), "nothing is left of another test")
    with events() as client:
        client.flushdb()
        yield client


def is_idle(fleet: Fleet) -> bool:
    """Let what was not acknowledged come again; return whether no message and no lock is left."""
    deliver_again(1)
    urls = server_url(10), fleet.lock_server.url()
    with redis.Redis.from_url(urls[0]) as broker, redis.Redis.from_url(urls[1]) as server:
        left = broker.llen(QUEUE_NAME) + broker.hlen("unacked")
        # What is not looked at before it is due may stay among the locks with parked messages.
        kept = [key for key in server.keys("*-parked:*") if not key.endswith(b":locks")]
        return not left and not server.keys("lock:*") and not kept


def waiting() -> list[str | None]:
    return [one.task_id for one in locks["default"].waiting("one")]


def reached(client: redis.Redis, step: str) -> None:
    assert client.blpop([f"reached:{step}"], timeout=WAIT), f"{step} was never reached"


def let_first_end(client: redis.Redis) -> None:
    """Let the first task go on, and again if its process is killed before it is acknowledged."""
    go(client, "1", times=5)


def all_run(fleet: Fleet, *numbers: int) -> None:
    """Check that tasks run to their end, none beside another, and that nothing is left."""

    def ran() -> bool:
        deliver_again(1)
        return not missing(history(), numbers)

    eventually(ran, "all tasks have run")
    assert check(history(), numbers).violations == []
    eventually(lambda: is_idle(fleet), "nothing is left")


@pytest.mark.parametrize(("step", "victim"), [(STORED, CHILD), *product(STEPS, [WORKER, SERVER])])
def test_what_is_killed_at_a_step(
    fleet: Fleet, client: redis.Redis, step: str, victim: str
) -> None:
    """The message comes back once the broker, or the lock server, delivers it again. A child parks
    what had to wait until it is due."""
    client.rpush(f"plan:{step}", HOLD if victim == SERVER else victim)
    tasks["one"].delay(1, "one", hold=True)
    started(client, "1")
    tasks["one"].apply_async((2, "one"), countdown=0.01 if victim == CHILD else None)
    if step != STORED:
        eventually(lambda: len(waiting()) == 1 and history()[-1]["what"] == STORED)
        let_first_end(client)
    if victim == SERVER:
        reached(client, step)
        fleet.kill_server()
        client.rpush(f"go:{step}", "on")
    elif victim == WORKER:
        eventually(lambda: [one for one in fleet.workers if one.process.poll()], "its death")
        fleet.mend(1)
    else:
        eventually(lambda: any(one["what"] == "killed" for one in history()), "a death")
    if step == STORED:
        let_first_end(client)
    all_run(fleet, 1, 2)


def numbers(what: str) -> list[int]:
    return [event["number"] for event in history() if event["what"] == what]


@pytest.mark.parametrize("hold", [True, False])
def test_worker_itself_parks_what_it_receives(
    fleet: Fleet, client: redis.Redis, hold: bool
) -> None:
    """No child does, and messages run in the order in which they came, the first among them."""
    if hold:
        tasks["one"].delay(1, "one", hold=True)
        started(client, "1")
    sent = [*range(1 + hold, 22)]
    for number in sent:
        tasks["one"].delay(number, "one")
    if hold:
        eventually(lambda: len(waiting()) == 20, "all are parked")
        let_first_end(client)
    all_run(fleet, 1, *sent)
    parked = [event for event in history() if event["what"] == STORED]
    assert {event["pid"] for event in parked} == {fleet.workers[0].process.pid}
    assert numbers("began") == [*range(1, 22)]


@pytest.mark.parametrize("reserved", [True, False])
def test_killed_worker_has_received_a_message(
    fleet: Fleet, client: redis.Redis, reserved: bool
) -> None:
    """It runs once, if it was parked and not acknowledged, or waits for a child with its lock."""
    held, key = ("123", "three") if reserved else ("1", "one")
    for number in held:
        tasks[key].delay(int(number), key, hold=True)
        started(client, number)
    if not reserved:
        client.rpush(f"plan:{STORED}", HOLD)
    odd.delay(4, "work")
    if reserved:
        eventually(lambda: RECEIVED in getattr(locks["default"].holder("one"), "marks", ()))
    else:
        reached(client, STORED)
    fleet.kill_worker(fleet.workers[0])
    fleet.mend(1)
    for number in held:
        go(client, number, times=5)
    all_run(fleet, 4, *map(int, held))
    assert numbers("began").count(4) == 1


def test_function_that_makes_a_key_holds_up_nothing_else(fleet: Fleet, client: redis.Redis) -> None:
    odd.delay(1, "wait")
    started(client, "key")
    plain.delay(2)
    eventually(lambda: not missing(history(), [2]), "another task has run")
    assert len(app.control.ping(timeout=WAIT, limit=1)) == 1
    go(client, "key", times=2)
    all_run(fleet, 1, 2)


def test_function_that_makes_no_key_fails_its_task(fleet: Fleet, client: redis.Redis) -> None:
    odd.delay(1, "fail")
    failed = eventually(lambda: [one for one in history() if one["what"] == "failed"])
    assert failed[0]["error"] == "ValueError('no key')"
    tasks["one"].delay(2, "one")
    all_run(fleet, 2)


def test_lock_server_is_down_when_a_message_comes(fleet: Fleet, client: redis.Redis) -> None:
    """The task fails in a child, and later ones run."""
    fleet.lock_server.kill()
    tasks["one"].delay(1, "one")
    failed = eventually(lambda: [one for one in history() if one["what"] == "failed"])
    fleet.lock_server.restart()
    assert "LockUnavailable" in failed[0]["error"]
    tasks["one"].delay(2, "one")
    all_run(fleet, 2)


@pytest.mark.parametrize("victim", [WORKER, SERVER])
def test_parked_and_acknowledged(fleet: Fleet, client: redis.Redis, victim: str) -> None:
    """No worker knows of the messages, and they outlive all of them, and the lock server."""
    tasks["one"].delay(1, "one", hold=True)
    started(client, "1")
    for number in (2, 3):
        tasks["one"].delay(number, "one")
    with redis.Redis.from_url(server_url(10)) as broker:
        eventually(lambda: len(waiting()) == 2 and broker.hlen("unacked") == 1, "all parked")
    if victim == WORKER:
        fleet.kill_worker(fleet.workers[0])
        fleet.mend(1)
    else:
        fleet.kill_server()
    let_first_end(client)
    all_run(fleet, 1, 2, 3)


def test_what_nobody_claims_gives_way_and_runs_later(fleet: Fleet, client: redis.Redis) -> None:
    """Its reservation ends while no worker takes the message from the queue that it came from."""
    away = f"{QUEUE_NAME}-away"
    app.control.add_consumer(away, reply=True)
    tasks["one"].delay(1, "one", hold=True)
    started(client, "1")
    brief.apply_async((2, "one"), queue=away)
    eventually(lambda: len(waiting()) == 1, "it is parked")
    app.control.cancel_consumer(away, reply=True)
    tasks["one"].delay(3, "one")
    eventually(lambda: len(waiting()) == 2, "another as well")
    let_first_end(client)
    eventually(lambda: missing(history(), [1, 2, 3]) == {2}, "the other has run")
    app.control.add_consumer(away, reply=True)
    all_run(fleet, 1, 2, 3)
    app.control.cancel_consumer(away, reply=True)


def test_parks_on_after_a_lost_connection(fleet: Fleet, client: redis.Redis) -> None:
    tasks["one"].delay(1, "one", hold=True)
    started(client, "1")
    before = len(fleet.workers[0].lines("Connected to"))
    for one in client.client_list():
        if one["db"] == "10":
            client.client_kill_filter(_id=one["id"])
    disconnect(app)
    eventually(lambda: len(fleet.workers[0].lines("Connected to")) > before, "the connection")
    tasks["one"].delay(2, "one")
    parked = eventually(lambda: [one for one in history() if one["what"] == STORED])
    assert parked[0]["pid"] == fleet.workers[0].process.pid
    with redis.Redis.from_url(server_url(10)) as broker:
        eventually(lambda: broker.hlen("unacked") == 1, "it is acknowledged")
    let_first_end(client)
    all_run(fleet, 1, 2)
