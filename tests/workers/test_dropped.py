"""Every way in which a worker drops a message frees the place that it held."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery.exceptions import TimeLimitExceeded
from kombu.exceptions import DecodeError

from django_redis_lock import Holder, lock, locks
from django_redis_lock.celery.message import HEADER
from example_project.embedded import EmbeddedServer
from tests.apps.celery import dropped as tasks
from tests.apps.celery.app import NOWHERE, QUEUE_NAME, WAITING, app
from tests.settings import server_url
from tests.tools import eventually, waiters
from tests.tools.celery_worker import WAIT, Worker, events, free, go, started, worker_of_module


@pytest.fixture(scope="module")
def worker(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    with worker_of_module(session_server, tmp_path_factory.mktemp("worker")) as worker:
        yield worker


@pytest.fixture
def client(worker: Worker) -> Iterator[redis.Redis]:
    with events() as client:
        client.flushdb()
        yield client


@pytest.fixture(params=WAITING)
def scope(request: pytest.FixtureRequest) -> str:
    """A scope that holds a place in the queue."""
    return str(request.param)


def place_of(scope: str, what: str, kind: str = "early") -> str:
    """Return the name of the lock that a waiting message holds."""
    return f"{what}~~queued:{kind}-{scope}" if scope == "queue" else what


def holder_of(name: str) -> Holder:
    holder = locks["default"].holder(name)
    assert holder is not None
    return holder


def runs_anew(client: redis.Redis, task: Any, what: str, dropped: Any) -> None:
    """Check that a new call gets a task of its own, which runs."""
    result = task.delay(what=what)
    assert result.id != dropped.id
    started(client, what)
    go(client, what)
    assert result.get(timeout=WAIT) == "go"


def drained() -> None:
    """Wait until a place is freed that was to be freed after all that came before."""
    marker = str(uuid.uuid4())
    task = tasks.early["queue"]
    send_changed(task, marker, rename)
    free(place_of("queue", marker))


def say_before(client: redis.Redis, what: str, say: str) -> None:
    """Tell a task what to do before its call."""
    client.rpush(f"before:{what}", say)


# Messages that are changed on their way.

Change = Callable[[dict[str, Any]], None]


def send_changed(task: Any, what: str, change: Change, **options: Any) -> Any:
    """Send a task, and change its message before a worker gets it."""
    result = task.apply_async(kwargs={"what": what}, queue=NOWHERE, **options)
    with redis.Redis.from_url(server_url(10)) as broker:
        message = json.loads(broker.lpop(NOWHERE))
        change(message)
        broker.lpush(QUEUE_NAME, json.dumps(message))
    return result


def rename(message: dict[str, Any]) -> None:
    """Name a task that the worker has not, as one that was renamed."""
    message["headers"]["task"] = "renamed"


def make_invalid(message: dict[str, Any]) -> None:
    """Give an ETA that is none."""
    message["headers"]["eta"] = "some day"


def make_refused(message: dict[str, Any]) -> None:
    message["content-type"] = "application/x-yaml"


def make_undecodable(message: dict[str, Any]) -> None:
    message["body"] = "bm8ganNvbg=="


CHANGES = (rename, make_invalid, make_refused, make_undecodable)


@pytest.mark.parametrize("change", CHANGES)
def test_place_of_a_message_that_the_worker_refuses_is_freed(
    client: redis.Redis, scope: str, name: str, change: Change
) -> None:
    """The next call after an unknown, invalid, refused or undecodable message gets its own task."""
    task = tasks.early[scope]
    result = send_changed(task, name, change)
    free(place_of(scope, name))
    runs_anew(client, task, name, result)


def test_place_on_an_alias_that_the_worker_has_not_is_told(
    client: redis.Redis, worker: Worker, name: str
) -> None:
    """The worker can't free it, says so, and goes on."""
    task_id = str(uuid.uuid4())
    slip = {"task_id": task_id, "lock": name, "ticket": "0" * 16, "using": "elsewhere"}
    app.send_task("renamed", task_id=task_id, headers={HEADER: slip})
    line = eventually(lambda: worker.lines(f"Message {task_id} was dropped"), "the line")
    assert "elsewhere" in line[0]


@pytest.mark.parametrize("named", [{"lock": 7}, {"lock": ""}, {"ticket": ["x"]}, {"using": {}}])
def test_garbage_in_the_header_does_no_harm(
    client: redis.Redis, worker: Worker, name: str, named: dict[str, Any]
) -> None:
    """What anybody may write into a message stops neither the worker nor the freeing of places."""
    task_id = str(uuid.uuid4())
    slip = {"task_id": task_id, "lock": name, "ticket": "0" * 16, "using": "default", **named}
    app.send_task("renamed", task_id=task_id, headers={HEADER: slip})
    task = tasks.early["queue"]
    result = send_changed(task, name, rename)
    free(place_of("queue", name))
    runs_anew(client, task, name, result)


# Messages that are revoked.


def test_place_of_a_message_that_was_revoked_before_it_came_is_freed(
    client: redis.Redis, scope: str, name: str
) -> None:
    """The worker knows of the revocation when it gets the message."""
    task_id = str(uuid.uuid4())
    assert app.control.revoke([task_id], reply=True, limit=1, timeout=WAIT)
    task = tasks.early[scope]
    result = task.apply_async(kwargs={"what": name}, task_id=task_id)
    free(place_of(scope, name))
    runs_anew(client, task, name, result)


def test_place_of_a_message_that_is_revoked_by_its_stamp_is_freed(
    client: redis.Redis, scope: str, name: str
) -> None:
    """A stamp stands for many messages."""
    assert app.control.revoke_by_stamped_headers(
        {"mark": [name]}, reply=True, limit=1, timeout=WAIT
    )
    task = tasks.early[scope]
    result = task.apply_async(kwargs={"what": name}, stamped_headers=["mark"], mark=name)
    free(place_of(scope, name))
    runs_anew(client, task, name, result)


@pytest.mark.parametrize("ending", ["revoked", "limited"])
def test_place_of_a_run_that_is_ended_while_it_waits_is_freed(
    client: redis.Redis, name: str, ending: str
) -> None:
    """Terminated, or stopped by its hard time limit, before it got the lock of the run."""
    task = tasks.early["queue"]
    with lock(name):
        limit = {"time_limit": 4} if ending == "limited" else {}
        result = task.apply_async(kwargs={"what": name}, **limit)
        eventually(lambda: waiters(name) == 1, "the run in the queue")
        if ending == "revoked":
            app.control.revoke(result.id, terminate=True, signal="SIGKILL")
        free(place_of("queue", name))
    if ending == "limited":
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=WAIT)
    runs_anew(client, task, name, result)


# Tasks that end before their call begins.


ENDS = [("early", "exit"), ("early", "fail"), ("early", "reject"), ("late", "fail")]


@pytest.mark.parametrize(("kind", "say"), [*ENDS, ("late", "reject")])
def test_place_of_a_task_that_ends_before_its_call_is_freed(
    client: redis.Redis, scope: str, name: str, kind: str, say: str
) -> None:
    """Its child died, or it failed or was rejected where the guard does not see it."""
    task = getattr(tasks, kind)[scope]
    say_before(client, name, say)
    result = task.delay(what=name)
    free(place_of(scope, name, kind))
    runs_anew(client, task, name, result)


@pytest.mark.parametrize(("kind", "say"), [("late", "exit"), ("early", "retry"), ("late", "retry")])
def test_place_of_a_message_that_comes_again_is_kept(
    client: redis.Redis, scope: str, name: str, kind: str, say: str
) -> None:
    """Delivered or sent once more, it goes on holding its place until it runs."""
    task, place = getattr(tasks, kind)[scope], place_of(scope, name, kind)
    with lock(f"{name}-before") as hold:
        say_before(client, name, say)
        say_before(client, name, f"wait {hold.name}")
        result = task.delay(what=name)
        ticket = holder_of(place).token_id
        eventually(lambda: waiters(hold.name) == 1, "the second coming")
        drained()
        assert holder_of(place).token_id == ticket
        assert task.delay(what=name).id == result.id
    started(client, name)
    go(client, name)
    assert result.get(timeout=WAIT) == "go"
    free(place)


def test_place_of_a_task_whose_arguments_the_child_cannot_read_is_freed(
    client: redis.Redis, scope: str, name: str
) -> None:
    """The parent can, so it takes the message for a good one."""
    task = tasks.early[scope]
    kwargs = {"what": name, "more": tasks.Unreadable()}
    result = task.apply_async(kwargs=kwargs, serializer="pickle")
    with pytest.raises(DecodeError, match="unreadable"):
        result.get(timeout=WAIT)
    free(place_of(scope, name))
    runs_anew(client, task, name, result)
