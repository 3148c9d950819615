"""The guard on real worker processes."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import Retry

from django_redis_lock import Holder, lock, locks
from django_redis_lock.celery import single_instance_task, skipped, task_skipped
from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.apps.celery import basic as tasks
from tests.apps.celery.app import app
from tests.settings import server_url
from tests.tools import SOON, eventually
from tests.tools.celery_worker import WAIT, free, go, started, worker_of_module


@pytest.fixture(scope="module")
def worker(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A worker with four child processes; the path of its log."""
    with worker_of_module(session_server, tmp_path_factory.mktemp("worker")) as worker:
        yield worker.log


def test_duplicates_do_not_run(client: redis.Redis, worker: Path, name: str) -> None:
    """Of many calls one runs; the others return at once and say who was running."""
    running = tasks.below.delay(name)
    pid = started(client, name)
    others = [tasks.below.delay(f"{name}:{number}") for number in range(10)]
    results = [other.get(timeout=WAIT) for other in others]
    assert running.state == "PENDING"
    for result in results:
        assert result["skipped"] is True
        assert result["key"] == "tests.apps.celery.basic.below"
        assert result["holder"]["task_id"] == running.id
        assert result["holder"]["task_name"] == "tests.apps.celery.basic.below"
        assert result["holder"]["pid"] == pid
        assert result["holder"]["since"]
    go(client, name)
    assert running.get(timeout=WAIT) == "go"
    free("tests.apps.celery.basic.below")
    lines = [line for line in worker.read_text().splitlines() if "skipped: lock" in line]
    for other in others:
        (line,) = [line for line in lines if f"[{other.id}] skipped" in line]
        assert running.id in line


def test_one_after_the_other_both_run(client: redis.Redis, name: str) -> None:
    """A finished task frees its lock for the next."""
    for _ in range(2):
        result = tasks.below.delay(name)
        go(client, name)
        assert result.get(timeout=WAIT) == "go"


@pytest.mark.parametrize(
    ("task", "key"),
    [
        (tasks.shared, "shared:{}"),
        (tasks.shared_above, "callable:{}"),
        (tasks.class_based, "class:{}"),
    ],
)
def test_keys_tell_calls_apart(client: redis.Redis, name: str, task: Any, key: str) -> None:
    """Calls with another key run side by side; the same key, however passed, does not."""
    one, two = task.delay(1, name), task.delay(2, name)
    started(client, name)
    started(client, name)
    parameter = "number" if task is tasks.class_based else "shop_id"
    again = task.apply_async(kwargs={parameter: 1, "what": name})
    assert again.get(timeout=WAIT)["key"] == key.format(1)
    go(client, name, 2)
    assert (one.get(timeout=WAIT), two.get(timeout=WAIT)) == ("go", "go")


def test_bound_task_guarded_above(client: redis.Redis, name: str) -> None:
    """A bound task gets itself, and the guard leaves it out of the key."""
    result = tasks.above.delay(name)
    started(client, name)
    holder = locks["default"].holder("tests.apps.celery.basic.above")
    assert holder.task_id == result.id
    assert holder.auto_renew is True
    go(client, name)
    assert result.get(timeout=WAIT) == [result.id, "go"]


def test_positional_lease_is_fixed(client: redis.Redis, name: str) -> None:
    """``single_instance_task(600)`` is a lease of 600 seconds that is not renewed."""
    result = tasks.shared_above.delay(9, name)
    started(client, name)
    holder = locks["default"].holder("callable:9")
    assert 590 < holder.ttl <= 600
    assert holder.auto_renew is False
    go(client, name)
    result.get(timeout=WAIT)


def test_bypassing_the_task_object_meets_the_guard(client: redis.Redis, name: str) -> None:
    """``send_task`` by name is guarded as well, for the guard is around the run."""
    running = tasks.below.delay(name)
    started(client, name)
    other = app.send_task("tests.apps.celery.basic.below", [name])
    assert other.get(timeout=WAIT)["holder"]["task_id"] == running.id
    go(client, name)
    running.get(timeout=WAIT)


def test_killed_child_frees_the_lock_with_its_lease(
    client: redis.Redis, name: str, settings: Any
) -> None:
    """A worker child killed by SIGKILL keeps the lock for one lease at the most."""
    tasks.losing.delay(name)
    pid = started(client, name)
    holder = locks["default"].holder("tests.apps.celery.basic.losing")
    end = time.monotonic() + holder.ttl
    os.kill(pid, signal.SIGKILL)
    assert lock("tests.apps.celery.basic.losing", blocking_timeout=10).acquire()
    assert time.monotonic() - end < SOON
    locks["default"].force_release("tests.apps.celery.basic.losing")


def test_retry_runs_in_one_chain(worker: Path) -> None:
    """``self.retry(countdown=0)`` is not a duplicate of itself, and the lock ends up free."""
    assert tasks.retrying.delay("x").get(timeout=WAIT) == 2
    free("tests.apps.celery.basic.retrying")


def test_exhausted_retries_free_the_lock(worker: Path) -> None:
    """When retries are exhausted the exception is the task's, and the lock is free."""
    with pytest.raises(KeyError):
        tasks.autoretrying.delay().get(timeout=WAIT)
    free("tests.apps.celery.basic.autoretrying")


def test_task_that_outlives_its_lease_succeeds_and_frees_nobody(
    client: redis.Redis, worker: Path, name: str
) -> None:
    """A run whose lock was lost keeps its result, and its successor keeps the lock."""
    late = tasks.losing.delay(name)
    started(client, name)
    with lock("tests.apps.celery.basic.losing", timeout=60, blocking_timeout=10) as successor:
        go(client, name)
        assert late.get(timeout=WAIT) == "go"
        successor.ensure_held()
    eventually(lambda: "] ran, but its lock was not released" in worker.read_text())


def test_nested_calls_are_skipped_and_do_not_deadlock(worker: Path) -> None:
    """A task that calls itself as a function goes on in its own run; an eager one is another.

    It gets an error if it would wait for its own lock.
    """
    name, direct, eager, refusal = tasks.nested.delay().get(timeout=WAIT)
    assert direct == "inner"
    assert eager["skipped"] is True
    assert eager["holder"]["task_name"] == name
    assert refusal.startswith(f"Lock {name!r} is held by this thread")


def test_missing_argument_is_a_type_error_without_a_lock(worker: Path) -> None:
    """Celery's argument check stays alive, in the sender; the guard's own check comes first."""
    with pytest.raises(TypeError, match="what"):
        tasks.below.delay()
    with pytest.raises(TypeError, match="what"):
        tasks.above.delay()
    wrong = app.send_task("tests.apps.celery.basic.shared", [])
    with pytest.raises(TypeError, match="shop_id"):
        wrong.get(timeout=WAIT)
    assert locks["default"].holder("shared:") is None


# What follows runs in this process, without a worker.


@pytest.fixture
def local_app() -> Iterator[Celery]:
    """An app of the test's own on the locmem backend."""
    before = app
    own = Celery("local", broker="memory://", set_as_current=False)
    yield own
    before.set_current()


@pytest.fixture(autouse=True)
def _restore_counts() -> Iterator[None]:
    skipped.clear()
    yield
    skipped.clear()


def test_skips_are_counted_logged_and_signalled(
    local_app: Celery, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each skip is one count, one log line and one signal."""

    @local_app.task(name=name)
    @single_instance_task(using="locmem")
    def work() -> str:
        return "ran"

    told: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        told.append(kwargs)

    task_skipped.connect(receive)
    try:
        with lock(name, using="locmem"), caplog.at_level(logging.INFO, "django_redis_lock"):
            result = work.apply().get()
    finally:
        task_skipped.disconnect(receive)
    assert result["skipped"] is True
    assert skipped == {name: 1}
    assert len([record for record in caplog.records if "skipped" in record.message]) == 1
    assert (told[0]["key"], told[0]["policy"]) == (name, "skip")
    assert isinstance(told[0]["holder"], Holder)
    assert work.apply().get() == "ran"
    assert work() == "ran"


def test_server_down_is_an_error_and_the_task_does_not_run(
    local_app: Celery, name: str, settings: Any
) -> None:
    """When the server can't be asked the task fails with LockUnavailable: never a silent run."""
    settings.LOCKS = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    ran = []

    @local_app.task(name=name)
    @single_instance_task
    def work() -> None:
        ran.append(1)

    with pytest.raises(LockUnavailable):
        work.apply().get()
    assert not ran


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"key": "a:{nope}"}, ValueError, "nope"),
        ({"key": "a:{"}, ValueError, "template"),
        ({"key": 7}, TypeError, "template"),
        ({"timeout": 0}, ValueError, "0.001"),
        ({"timeout": True}, ValueError, "bool"),
    ],
)
def test_mistakes_are_found_when_the_task_is_defined(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """A key that can't fit or a senseless lease raises at import, naming the value."""
    with pytest.raises(error, match=text):

        @single_instance_task(**options)
        def work(shop_id: int) -> None: ...


def test_coroutine_functions_are_refused() -> None:
    """A body that runs after the call would run without the lock, so it is refused at import."""
    with pytest.raises(TypeError, match="with statement"):

        @single_instance_task
        async def work() -> None: ...

    with pytest.raises(TypeError, match="with statement"):

        @single_instance_task
        def generate() -> Iterator[int]:
            yield 1


def test_what_is_no_task_is_refused() -> None:
    """Only functions and tasks can be decorated, and only once."""
    with pytest.raises(TypeError, match="Celery task"):
        single_instance_task(key="a")(object())
    with pytest.raises(TypeError, match="already"):
        single_instance_task(single_instance_task(lambda: None))


def test_key_template_reads_defaults_and_attributes(local_app: Celery, name: str) -> None:
    """A template sees defaults, keyword arguments and attributes, however they are passed."""
    seen = []

    @local_app.task(name=name)
    @single_instance_task(key="k:{a}:{b}:{c.real}:{d}", using="locmem")
    def work(a: int, b: str = "two", *, c: int = 3, **others: Any) -> None:
        seen.extend(holder.name for holder in locks["locmem"].holders())

    work.apply(args=(1,), kwargs={"d": 4})
    work.apply(kwargs={"a": 1, "d": 4})
    assert seen == ["k:1:two:3:4", "k:1:two:3:4"]


def test_callable_key_must_return_text(local_app: Celery, name: str) -> None:
    """A callable key that returns no str is an error that names what it returned."""

    @local_app.task(name=name)
    @single_instance_task(key=lambda shop_id: shop_id, using="locmem")
    def work(shop_id: int) -> None: ...

    with pytest.raises(TypeError, match="7"):
        work.apply(args=(7,)).get()


def test_shared_task_guarded_above_is_guarded_in_every_app() -> None:
    """An app that is made later gets the guard as well."""
    later = Celery("later", broker="memory://", set_as_current=False)
    try:
        task = later.tasks["tests.apps.celery.basic.shared_above"]
        assert task is not tasks.shared_above._get_current_object()
        from django_redis_lock.celery.guard import GUARD

        assert hasattr(task, GUARD)
        assert hasattr(app.tasks["tests.apps.celery.basic.shared_above"], GUARD)
    finally:
        app.set_current()


def test_retry_inside_the_guard_passes_through(local_app: Celery, name: str) -> None:
    """Celery's control-flow exceptions are the task's, and the lock is free after them."""

    @local_app.task(name=name, bind=True)
    @single_instance_task(using="locmem")
    def work(self: Any) -> None:
        raise Retry

    work.apply()
    assert locks["locmem"].holder(name) is None


def test_eager_task_sees_its_request(local_app: Celery, name: str) -> None:
    """The guard hides the request from an eager task no more than Celery does."""

    @local_app.task(name=name, bind=True)
    @single_instance_task(using="locmem")
    def work(self: Any) -> list[Any]:
        return [self.request.id, self.request.is_eager]

    assert work.apply(task_id="one").get() == ["one", True]
    assert work() == [None, False]


def test_worker_url_is_that_of_the_tests() -> None:
    """The worker of these tests talks to the session's server."""
    assert app.conf.broker_url == server_url(10)
