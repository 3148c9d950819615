"""The guard on real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from django_redis_lock import locks
from django_redis_lock.celery import single_instance_task
from example_project.embedded import EmbeddedServer
from tests.apps.celery import basic as tasks
from tests.apps.celery.app import app
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


def test_positional_lease_is_fixed(client: redis.Redis, name: str) -> None:
    """``single_instance_task(600)`` is a lease of 600 seconds that is not renewed."""
    result = tasks.shared_above.delay(9, name)
    started(client, name)
    holder = locks["default"].holder("callable:9")
    assert 590 < holder.ttl <= 600
    assert holder.auto_renew is False
    go(client, name)
    result.get(timeout=WAIT)


# What follows runs in this process, without a worker.


@pytest.fixture
def local_app() -> Iterator[Celery]:
    """An app of the test's own on the locmem backend."""
    before = app
    own = Celery("local", broker="memory://", set_as_current=False)
    yield own
    before.set_current()


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


def test_eager_task_sees_its_request(local_app: Celery, name: str) -> None:
    """The guard hides the request from an eager task no more than Celery does."""

    @local_app.task(name=name, bind=True)
    @single_instance_task(using="locmem")
    def work(self: Any) -> list[Any]:
        return [self.request.id, self.request.is_eager]

    assert work.apply(task_id="one").get() == ["one", True]
    assert work() == [None, False]
