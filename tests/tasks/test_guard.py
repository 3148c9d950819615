"""``@single_instance_task`` on tasks of Django, or of ``django-tasks`` where Django has none."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_redis_lock import lock, locks, semaphore
from django_redis_lock.celery import single_instance_task as of_celery
from django_redis_lock.tasks import (
    TaskAlreadyRunning,
    _put_back,
    single_instance_task,
    task_skipped,
)
from tests.tools import ROOT, Background, eventually, waiters

try:
    from django.tasks import task
except ImportError:  # before Django 6.0
    from django_tasks import task

KEY = "{name}"


def seen(name: str, context: Any = None) -> list[Any]:
    """Return the holder of a lock, as a task sees it that runs."""
    holder = locks["default"].holder(name)
    mine = context is None or holder.task_id == context.task_result.id
    return [holder.task_name, mine, holder.holders]


@task
@single_instance_task(key=KEY)
def below(name):
    return seen(name)


@single_instance_task(key=KEY)
@task
def above(name):
    return seen(name)


@single_instance_task(key=KEY)
@task(takes_context=True)
async def asynchronous(context, name):
    return await sync_to_async(seen)(name, context)


@single_instance_task(key=lambda context, name: name)
@task(takes_context=True)
def with_context(context, name):
    return seen(name, context)


@task
@single_instance_task(key=KEY, on_conflict="raise", timeout=30)
def refuses(name):
    return seen(name)


@task
@single_instance_task(key=KEY, on_conflict="wait")
def waits(name):
    return seen(name)


@task
@single_instance_task(key=KEY, on_conflict="wait", blocking_timeout=0.3)
async def gives_up(name):
    return name


@task
@single_instance_task
def whole():
    return seen(f"{__name__}.whole")


SKIPPING = [below, above, asynchronous, with_context]


@pytest.mark.parametrize("guarded", SKIPPING, ids=lambda one: one.name)
def test_a_run_holds_the_lock(server: Any, name: str, guarded: Any) -> None:
    assert guarded.enqueue(name).return_value == [guarded.module_path, True, 1]
    assert locks["default"].holder(name) is None
    if not guarded.takes_context:
        assert guarded.call(name) == [guarded.module_path, True, 1]


@pytest.mark.parametrize("guarded", SKIPPING, ids=lambda one: one.name)
def test_a_second_is_skipped(server: Any, name: str, guarded: Any) -> None:
    told: list[Any] = []

    def note(**facts: Any) -> None:
        told.append(facts)

    task_skipped.connect(note)
    with lock(name) as held:
        skipped = guarded.enqueue(name).return_value
        assert locks["default"].holder(name).fence == held.fence
    task_skipped.disconnect(note)
    assert (skipped["skipped"], skipped["key"]) == (True, name)
    assert skipped["task"] == guarded.module_path
    assert skipped["holder"]["pid"] == os.getpid()
    (facts,) = told
    assert [facts[one] for one in ("sender", "key", "policy")] == [guarded, name, "skip"]


def test_a_second_is_refused(server: Any, name: str) -> None:
    with lock(name):
        ended = refuses.enqueue(name)
    assert ended.errors[0].exception_class is TaskAlreadyRunning
    assert f"lock {name!r} is held by" in ended.errors[0].traceback
    assert refuses.enqueue(name).return_value[0] == refuses.module_path


def test_a_paused_task_says_so(server: Any, name: str) -> None:
    locks["default"].set_limit(name, 0, by="ada")

    @single_instance_task(key=KEY, on_conflict="raise", concurrency=2)
    def paused(name: str) -> None:
        raise AssertionError

    with pytest.raises(TaskAlreadyRunning, match="is paused: limit 0, set by ada"):
        paused(name)


def test_a_second_waits(server: Any, name: str) -> None:
    with lock(name, timeout=60):
        run = Background(lambda: waits.enqueue(name))
        eventually(lambda: waiters(name) == 1)
        ended = gives_up.enqueue(name)
    assert run.outcome().status == "SUCCESSFUL"
    assert ended.errors[0].exception_class is TaskAlreadyRunning
    assert gives_up.enqueue(name).return_value == name


def test_only_a_wait_is_put_back() -> None:
    """Not a task that has run in the meantime, and has failed."""
    row = SimpleNamespace(traceback="KeyError: 7\n", task_path="tests.work", status="FAILED")
    _put_back(SimpleNamespace(db_result=row))
    assert row.status == "FAILED"


def test_so_many_run_at_once(server: Any, name: str) -> None:
    two = single_instance_task(key=KEY, concurrency=2, on_conflict="raise")(seen)
    with semaphore(name, 2):
        assert two(name)[2] == 2
        with semaphore(name, 2), pytest.raises(TaskAlreadyRunning, match="all 2 permits are taken"):
            two(name)


def test_all_runs_exclude_each_other_without_a_key(server: Any) -> None:
    assert whole.enqueue().return_value == [whole.module_path, True, 1]
    with lock(whole.module_path):
        assert whole.enqueue().return_value["skipped"]


def test_a_function_that_no_module_has(server: Any, name: str) -> None:
    """Its error releases the lock."""

    def fails(name: str) -> None:
        raise KeyError(name)

    guarded = single_instance_task(key=KEY)(fails)
    with lock(name):
        assert guarded(name)["task"] == f"{__name__}.{fails.__qualname__}"
    with pytest.raises(KeyError):
        guarded(name)
    assert locks["default"].holder(name) is None


# What is refused where the task is defined.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"scope": "queue"}, TypeError, "unexpected keyword argument 'scope'"),
        ({"on_conflict": "park"}, ValueError, "use 'skip', 'raise' or 'wait'"),
        ({"blocking_timeout": 3}, ValueError, "requires on_conflict='wait': omit it"),
        ({"key": "{shop}"}, ValueError, "names 'shop', which is not an argument of the task"),
        ({"key": 7}, TypeError, "key=7 must be a template"),
    ],
)
def test_a_wrong_option(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        single_instance_task(**options)(seen)


def test_what_is_no_task() -> None:
    with pytest.raises(
        TypeError, match=r"must decorate a function or task of django\.tasks, not 7"
    ):
        single_instance_task()(7)
    with pytest.raises(TypeError, match="is already a single_instance_task"):
        single_instance_task(below)
    with pytest.raises(TypeError, match="generator function"):
        single_instance_task(lambda: (yield))
    with pytest.raises(TypeError, match=r"from django_redis_lock\.tasks instead"):
        of_celery(below)


PROGRAM = """
import sys
sys.modules["celery"] = sys.modules["kombu"] = None
import django
from django.conf import settings
LOCKS = {"default": {"LOCATION": sys.argv[1]}}
settings.configure(INSTALLED_APPS=["django_redis_lock"], LOCKS=LOCKS)
django.setup()
from django_redis_lock.tasks import single_instance_task
@single_instance_task(key="{shop}-{what}")
def work(shop, what): return [one.name for one in locks["default"].holders()]
from django_redis_lock import locks
print(work(7, what=["a"]))
"""


def test_no_celery_is_needed(server: Any) -> None:
    command = [sys.executable, "-c", PROGRAM, server.url()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stderr, done.stdout) == ("", "[\"7-['a']\"]\n")
