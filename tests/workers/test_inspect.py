"""What a worker, the command and the admin say of tasks that wait for a lock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from django_redis_lock import lock, locks
from django_redis_lock.celery import inspecting
from example_project.embedded import EmbeddedServer
from tests.apps.celery import inspected as tasks
from tests.apps.celery.app import app as tests_app
from tests.apps.celery.settings import PROXY
from tests.tools import ROOT, eventually, waiters
from tests.tools.admin import page_of, root
from tests.tools.celery_worker import APP, Worker, events, go, started, worker_of_module
from tests.tools.console import command
from tests.tools.proxy import Proxy


@pytest.fixture(scope="module")
def proxy(session_server: EmbeddedServer) -> Iterator[Proxy]:
    """A way to the server that can fall silent."""
    with Proxy(session_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(
    session_server: EmbeddedServer, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker with three child processes on an empty server."""
    directory = tmp_path_factory.mktemp("inspect")
    environment = {PROXY: str(proxy.port)}
    with worker_of_module(
        session_server, directory, concurrency=3, environment=environment
    ) as worker:
        yield worker


@pytest.fixture
def hear(worker: Worker) -> Iterator[redis.Redis]:
    with events() as client:
        client.flushdb()  # a test before may not have heard of all its tasks
        yield client


def asked(**arguments: Any) -> dict[str, Any]:
    (answer,) = tests_app.control.broadcast(
        "guarded_tasks", arguments=arguments, reply=True, limit=1, timeout=10
    )
    return dict(*answer.values())


def line_of(result: Any) -> dict[str, Any]:
    """Return what the worker says of one task."""
    return next((line for line in asked()["tasks"] if line["id"] == result.id), {})


def told(result: Any) -> tuple[Any, ...]:
    """Return how a task stands, behind whom, and what became of its place."""
    line = line_of(result)
    return line.get("state"), line.get("behind"), line.get("place")


def all_end(hear: redis.Redis, what: str, *results: Any) -> None:
    go(hear, what, len(results))
    for result in results:
        result.get(timeout=20)


def test_a_task_runs_and_others_wait_behind_it(worker: Worker, hear: redis.Redis) -> None:
    """One waits in the queue, one comes again in an hour; both name the holder."""
    first = tasks.plain.delay("a")
    started(hear, "a")
    second = tasks.waiting.delay("a")
    eventually(lambda: waiters("plain:a") == 1)
    third = tasks.again.delay("a")
    eventually(lambda: line_of(third).get("state") == "comes again")
    holder = str(locks["default"].holder("plain:a"))
    assert f"plain[{first.id}]" in holder
    assert told(first) == ("runs", None, None)
    assert told(second) == ("waits", holder, None)
    line = line_of(third)
    assert (line["behind"], line["attempts"], line["using"]) == (holder, 1, "default")
    assert line["lock"] == "plain:a"
    assert line["eta"]
    assert {item["id"] for item in asked(lock="plain:a")["tasks"]} == {
        first.id,
        second.id,
        third.id,
    }
    assert not asked(lock="plain:b")["tasks"]
    all_end(hear, "a", first, second)
    eventually(lambda: told(third) == ("comes again", None, None))
    tests_app.control.revoke(third.id)


def test_a_lock_that_no_task_holds_is_waited_for(worker: Worker, hear: redis.Redis) -> None:
    """The holder is a view."""
    with lock("plain:view", 60):
        result = tasks.waiting.delay("view")
        eventually(lambda: waiters("plain:view") == 1)
        assert told(result)[:2] == ("waits", str(locks["default"].holder("plain:view")))
    started(hear, "view")
    all_end(hear, "view", result)


@pytest.mark.parametrize("scope", ["queued", "throughout"])
def test_a_message_has_its_place_until_it_is_taken(
    worker: Worker, hear: redis.Redis, scope: str
) -> None:
    """A message that waits for its time says whether its place is still its own."""
    task, what = getattr(tasks, scope), f"place-{scope}"
    place = f"{scope}:{what}~~queued:{scope}" if scope == "queued" else f"{scope}:{what}"
    result = task.apply_async((what,), countdown=3600)
    eventually(lambda: line_of(result))
    assert told(result) == ("scheduled", None, "held")
    assert [line["id"] for line in asked(lock=place)["tasks"]] == [result.id]
    locks["default"].force_release(place)
    assert told(result) == ("scheduled", None, "lost")
    tests_app.control.revoke(result.id)


def test_one_of_several_places_is_enough(worker: Worker, hear: redis.Redis) -> None:
    """A third task waits behind the first of two; the second waits behind none."""
    first, second = (tasks.several.delay("s") for _ in range(2))
    started(hear, "s")
    started(hear, "s")
    assert {told(first)[:2], told(second)[:2]} == {("runs", None)}
    third = tasks.several.delay("s")
    eventually(lambda: waiters("several:s~~1") + waiters("several:s~~2") == 1)
    state, behind, _ = told(third)
    assert state == "waits"
    assert first.id in behind or second.id in behind
    assert [line["id"] for line in asked(lock="several:s~~2")["tasks"]].count(third.id) == 1
    all_end(hear, "s", first, second, third)


def test_one_free_place_of_several_keeps_nobody_waiting(worker: Worker) -> None:
    """Whoever has the other."""
    with lock("several:f~~1", 60):
        result = tasks.several.apply_async(("f",), countdown=3600)
        eventually(lambda: told(result) == ("scheduled", None, None))
        with lock("several:f~~2", 60):
            assert told(result)[1] == str(locks["default"].holder("several:f~~1"))
    tests_app.control.revoke(result.id)


def test_what_has_no_guard_is_not_told(worker: Worker, hear: redis.Redis) -> None:
    """Celery's own commands show the other tasks."""
    result = tasks.unguarded.delay("u")
    started(hear, "u")
    assert asked() == {"tasks": [], "keys_not_known": 0, "left_out": 0}
    all_end(hear, "u", result)


def test_a_key_that_can_not_be_made_is_not_known(worker: Worker) -> None:
    """Its task waits for no lock, and the worker goes on."""
    result = tasks.broken.apply_async(("k",), countdown=3600)
    line = eventually(lambda: line_of(result))
    assert (line["lock"], line["behind"], line["state"]) == ("not known", "not known", "scheduled")
    answer = asked(lock="keyless-one:k")
    assert (answer["tasks"], answer["keys_not_known"]) == ([], 1)
    assert not worker.lines("Traceback")
    other = tasks.plain.apply_async(("k",), countdown=3600)
    eventually(lambda: told(other)[:2] == ("scheduled", None))
    for item in (result, other):
        tests_app.control.revoke(item.id)


def test_a_key_that_hangs_holds_the_worker_up_for_a_moment(
    worker: Worker, hear: redis.Redis
) -> None:
    """And is asked for once only, until it comes."""
    result = tasks.hanging.apply_async(("h",), countdown=3600)
    eventually(lambda: worker.lines(result.id))
    before = time.monotonic()
    assert told(result)[:2] == ("scheduled", "not known")
    assert time.monotonic() - before < 3 * inspecting.TIME_FOR_KEYS
    assert told(result)[:2] == ("scheduled", "not known")
    assert hear.llen("key asked") == 1
    hear.rpush("key:h", *["now"] * 1000)  # one for each question
    eventually(lambda: told(result)[:2] == ("scheduled", None))
    tests_app.control.revoke(result.id)


def test_a_silent_lock_server_holds_the_worker_up_for_a_moment(
    worker: Worker, proxy: Proxy, hear: redis.Redis
) -> None:
    """What is on other servers is known all the same."""
    result = tasks.silent.apply_async(("q",), countdown=3600)
    other = tasks.plain.apply_async(("q",), countdown=3600)
    eventually(lambda: told(result)[:2] == ("scheduled", None))
    eventually(lambda: told(other)[:2] == ("scheduled", None))
    proxy.hold_back()
    try:
        before = time.monotonic()
        answer = {line["id"]: line["behind"] for line in asked()["tasks"]}
        took = time.monotonic() - before
    finally:
        proxy.let_go()
    assert answer[result.id] == "not known"
    assert answer[other.id] is None
    assert inspecting.TIME_FOR_KEYS <= took < inspecting.TIME_FOR_KEYS + 5
    for item in (result, other):
        tests_app.control.revoke(item.id)


# The command and the admin.


@pytest.fixture
def current() -> Iterator[Celery]:
    tests_app.set_current()
    yield tests_app
    tests_app.set_current()


@pytest.fixture
def one_alias(settings: Any) -> None:
    """A project with one alias of LOCKS."""
    settings.LOCKS = {"default": settings.LOCKS["default"]}


@pytest.fixture
def lined_up(worker: Worker, hear: redis.Redis) -> Iterator[tuple[Any, ...]]:
    """A task that runs, one that waits for it, and one that comes again."""
    first = tasks.plain.delay("shown")
    started(hear, "shown")
    second, third = tasks.waiting.delay("shown"), tasks.again.delay("shown")
    eventually(lambda: told(second)[0] == "waits" and told(third)[0] == "comes again")
    yield first, second, third
    tests_app.control.revoke(third.id)
    all_end(hear, "shown", first, second)


@pytest.mark.usefixtures("current", "one_alias")
def test_the_command_shows_the_tasks_of_a_lock(lined_up: tuple[Any, ...]) -> None:
    """In order: what runs, what waits, and what comes again, when."""
    lines = command("show", "plain:shown").lines
    rows = lines[lines.index("Celery tasks of this lock") + 2 :][:3]
    holder = str(locks["default"].holder("plain:shown"))
    for row, task, state in zip(rows, lined_up, ["runs", "waits", "comes again"], strict=True):
        assert f"[{task.id}]" in row
        assert f"  {state}  " in row
        assert (holder in row) == (state != "runs")
    (found,) = json.loads(command("show", "plain:shown", "--json").out)["locks"]
    assert [task["id"] for task in found["tasks"]] == [task.id for task in lined_up]
    assert found["tasks"][2]["attempts"] == 1


@pytest.mark.usefixtures("current", "one_alias")
def test_the_admin_shows_the_tasks_of_a_lock(
    lined_up: tuple[Any, ...], db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the page is opened; its updates ask no worker."""
    browser = root()
    page = browser.get(page_of("plain:shown")).content.decode()
    part = page[page.index('id="lock-tasks"') :]
    places = [part.index(f"[{task.id}]") for task in lined_up]
    assert places == sorted(places)
    assert ">comes again</td>" in part
    asked: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(tests_app.control, "broadcast", lambda *args, **kw: asked.append(args))
        update = browser.get(page_of("plain:shown"), headers={"X-Held-Locks": "1"})
    assert asked == []
    assert "lock-tasks" not in update.content.decode()


@pytest.mark.usefixtures("worker", "current", "one_alias")
def test_no_task_is_told_from_no_answer(db: None) -> None:
    """A worker that says that it has none is no silence."""
    with lock("alone", 60):
        assert "None on the workers that answered (1)." in command("show", "alone").out
        page = root().get(page_of("alone")).content.decode()
        assert "None with the workers that answered." in page
        (found,) = json.loads(command("show", "alone", "--json").out)["locks"]
        assert found["tasks"] == []


@pytest.mark.parametrize(
    ("broker", "told"),
    [("memory://", "no worker answered"), ("redis://127.0.0.1:1/0", "127.0.0.1:1")],
)
@pytest.mark.usefixtures("one_alias")
def test_silence_is_not_known(
    session_server: EmbeddedServer, db: None, current: Celery, broker: str, told: str
) -> None:
    """If no worker answers, or the broker is down, no task is reported as waiting."""
    app = Celery("elsewhere", broker=broker, set_as_current=False)
    app.set_current()
    with lock("alone", 60):
        shown = command("show", "alone").out
        assert "Not known: " in shown
        assert told in shown
        (found,) = json.loads(command("show", "alone", "--json").out)["locks"]
        assert found["tasks"] is None
        page = root().get(page_of("alone")).content.decode()
        assert "Not known: " in page


def test_celery_knows_the_command(worker: Worker) -> None:
    """``celery inspect``, with a lock's name or without."""
    program = [sys.executable, "-m", "celery", "-A", APP, "inspect", "-t", "5", "guarded_tasks"]
    listed = subprocess.run(
        [*program[:-1], "--list"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "guarded_tasks [LOCK]" in listed.stdout
    answered = subprocess.run(
        [*program, "plain:x", "-j"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    (answer,) = json.loads(answered.stdout).values()
    assert answer["tasks"] == []
