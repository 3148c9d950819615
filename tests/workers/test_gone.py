"""Places of messages that are gone are found and released, and those of others never."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from django_redis_lock import lock, locks
from django_redis_lock.celery.guard import GUARD
from django_redis_lock.celery.places import Places
from django_redis_lock.management.console import broker, places
from django_redis_lock.management.console.broker import MessagesNotKnown, find_messages
from example_project.embedded import EmbeddedServer
from tests.apps.celery import inspected as tasks
from tests.apps.celery.app import QUEUE_NAME as QUEUE
from tests.apps.celery.app import app as tests_app
from tests.settings import server_url
from tests.tools import Background, eventually, waiters
from tests.tools.celery_worker import Worker, disconnect, running_worker
from tests.tools.console import Done, command

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")

IN_HAND = "in-hand"


@pytest.fixture
def app(
    server: EmbeddedServer, settings: Any, db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Celery]:
    """The app as that of the project, on an empty server, with messages that arrive at once."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}
    monkeypatch.setattr(places, "SETTLED", 0.0)
    tests_app.set_current()
    yield tests_app
    tests_app.set_current()
    disconnect(tests_app)
    locks.reset()


@pytest.fixture
def worker(app: Celery, tmp_path: Path) -> Iterator[Worker]:
    """A worker that takes the messages of another queue than the one that is looked at."""
    with running_worker(tmp_path, concurrency=1, queue=IN_HAND) as worker:
        yield worker


def release(*words: str) -> Done:
    return command("release", "--queued", "--only-gone", "--noinput", *words)


def held() -> list[str]:
    return sorted(holder.name for holder in locks["default"].holders())


def test_what_was_purged_is_released_and_what_waits_is_not(app: Celery, worker: Worker) -> None:
    """One message in the queue, one with a priority, one in the worker's hand; then a purge."""
    in_hand = tasks.queued.apply_async(("hand",), countdown=3600, queue=IN_HAND)
    eventually(lambda: worker.lines(in_hand.id))
    waits = tasks.queued.delay("waits")
    urgent = tasks.throughout.apply_async(("urgent",), priority=9)
    with lock("no place", 60):
        every = [
            "no place",
            "queued:hand~~queued:queued",
            "queued:waits~~queued:queued",
            "throughout:urgent",
        ]
        done = release()
        assert (done.code, held()) == (3, every)
        left = re.findall(
            r"(\d) locks? kept, (?:each )?because (?:\S+ has its|its) message", done.err
        )
        assert sum(map(int, left)) == 3

        app.control.purge()
        rehearsed = release("--dry-run")
        assert (rehearsed.code, held()) == (0, every)
        assert rehearsed.out.count("its message is in no queue, and no worker has it") == 2
        done = release("--reason", "the queue was purged")
        assert done.code == 0
        assert held() == ["no place", "queued:hand~~queued:queued"]
    entries = locks["default"].history("throughout:urgent")
    assert [(entry.task_id, entry.reason) for entry in entries] == [
        (urgent.id, "the queue was purged")
    ]
    assert tasks.queued.delay("waits").id != waits.id


def test_a_message_that_nobody_has_acknowledged_is_there(app: Celery) -> None:
    """Its worker may be away; the broker gives it out again."""
    tasks.queued.delay("taken")
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(QUEUE)
        queue.get(timeout=10)
        with redis.Redis.from_url(server_url(10)) as client:
            assert (client.llen(QUEUE), client.hlen("unacked")) == (0, 1)
        assert release().code == 3
        queue.close()


def test_a_queue_that_only_the_broker_knows_is_read(app: Celery) -> None:
    """As one that a sender named, which no worker reads and no setting has."""
    tasks.queued.apply_async(("far",), queue="somewhere-else")
    app.amqp.queues.pop("somewhere-else", None)
    assert release().code == 3
    assert held() == ["queued:far~~queued:queued"]


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_a_task_that_has_ended_needs_no_place(app: Celery, state: str) -> None:
    """Its result says so, even while its message waits."""
    result = tasks.throughout.delay("ended")
    app.backend.store_result(result.id, ValueError("x") if state == "FAILURE" else None, state)
    done = release("--format", "json")
    assert done.code == 0
    assert json.loads(done.out)["outcomes"][0]["result"] == "released"
    assert held() == []


def test_the_result_of_an_earlier_use_of_an_id_says_nothing(app: Celery) -> None:
    """The message waits, under the id of a task that has ended."""
    app.backend.store_result("nightly", None, "SUCCESS")
    tasks.queued.apply_async(("again",), task_id="nightly")
    assert release().code == 3
    assert held() == ["queued:again~~queued:queued"]


def test_a_message_that_is_perhaps_on_its_way_is_not_gone(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take a while from the place to the queue."""
    monkeypatch.undo()
    tasks.queued.delay("young")
    app.control.purge()
    assert release().code == 3
    assert held() == ["queued:young~~queued:queued"]


def test_what_is_on_no_shelf_is_not_known(app: Celery) -> None:
    """A broker that is down, of another kind, or that has a message nobody can read."""
    tasks.queued.delay("unknown")
    app.control.purge()
    for url, why in (
        ("redis://127.0.0.1:1/0", "the broker can't"),
        ("memory://", "a broker of kind"),
    ):
        Celery("elsewhere", broker=url, backend=server_url(11))
        done = release()
        assert done.code == 3
        assert f"The state of messages is not known: {why}" in done.err
    app.set_current()
    with redis.Redis.from_url(server_url(10)) as client:
        client.lpush(QUEUE, "no message")
        assert "a message can't be read" in release().err
        client.delete(QUEUE)
    assert release().code == 0


def test_a_task_that_waits_for_its_lock_is_there(app: Celery) -> None:
    """This holds even if its worker does not answer."""
    result = tasks.queued.delay("line")
    app.control.purge()
    (place,) = locks["default"].holders()
    run = Places(getattr(tasks.queued, GUARD).options, "queued:line", tasks.queued, result.id)
    with lock("queued:line", 60):
        waiting = Background(lambda: run.wait(60, None, for_runs=False))
        eventually(lambda: waiters("queued:line") == 1)
        assert release("--pattern", place.name).code == 3
    waiting.outcome().release()
    assert release().code == 0


def test_places_are_listed_and_selected(app: Celery) -> None:
    """``--queued`` goes with names and patterns, and alone stands for all."""
    tasks.queued.delay("one")
    tasks.throughout.delay("two")
    with lock("other", 60):
        names = ["queued:one~~queued:queued", "throughout:two"]
        listed = json.loads(command("list", "--queued", "--json").out)["locks"]
        assert sorted(item["name"] for item in listed) == names
        assert command("list", "other", "--queued").code == 3
        done = command("release", "other", "--queued", "--noinput")
        assert (
            done.code,
            "Lock 'other' is not held for a message in a Celery queue." in done.err,
        ) == (
            3,
            True,
        )
        assert command("release", "--queued", "--noinput").code == 0
        assert held() == ["other"]
    for wrong in (["--queued", "--all", "--pattern", "*"], ["--only-gone"]):
        assert command("release", *wrong).code == 2
    assert command("release", "--all", "--only-gone", "--only-dead").code == 2


def test_queues_that_can_only_be_counted(app: Celery, worker: Worker) -> None:
    """As RabbitMQ's: all have to be empty, and then a message is where a worker says."""
    result = tasks.queued.delay("counted")
    wanted = {result.id: "queued"}
    with app.connection_for_write() as connection:
        with pytest.raises(MessagesNotKnown, match=f"queue {QUEUE} is not empty"):
            broker._look_in_amqp(app, connection, wanted)
        app.control.purge()
        assert broker._look_in_amqp(app, connection, wanted) == {}
        kept = tasks.queued.apply_async(("kept",), countdown=3600, queue=IN_HAND)
        eventually(lambda: worker.lines(kept.id))
        found = broker._look_in_amqp(app, connection, {kept.id: "queued"})
        assert found[kept.id].endswith("has its message")
    assert kept.id in find_messages(app, {kept.id: "queued"})
