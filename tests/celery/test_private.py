"""What the guard needs of Celery, kombu and billiard beside their public API is as it was.

Each test tells what changed in a release of theirs, before anything else fails for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from celery import Celery, Task, shared_task
from celery.app.trace import build_tracer
from celery.local import PromiseProxy, Proxy
from kombu import Exchange, Queue

from django_redis_lock.celery import private
from tests.apps.celery.app import app as tests_app
from tests.tools import ROOT, syntax_tree

PRIVATE_MODULES = ("celery._state", "celery.local", "celery.app.annotations", "billiard")
PRIVATE_ATTRIBUTES = {
    "__header__",
    "__then__",
    "_get_active_apps",
    "_get_current_object",
    "_get_exec_options",
    "_task_stack",
    "global_keyprefix",
    "on_decode_error",
    "priority_steps",
    "task_buckets",
    "unacked_key",
}


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app of the test's own."""
    own = Celery("own", broker="memory://", set_as_current=False)
    yield own
    own.close()
    tests_app.set_current()


def body(number: int, *, text: str = "") -> None:
    """Have nothing to do."""


def test_all_of_it_stands_in_one_module() -> None:
    """No other module of the guard imports or names it."""
    for path in (ROOT / "django_redis_lock").rglob("*.py"):
        if path.name == "private.py":
            continue
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES):
                pytest.fail(f"{path} imports from {node.module}")
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES:
                pytest.fail(f"{path} names {node.attr}")


def test_active_apps_are_those_that_live(app: Celery) -> None:
    """``celery._state._get_active_apps``."""
    assert app in set(private.active_apps())


def test_apps_tell_before_they_make_their_tasks(app: Celery) -> None:
    """``celery._state.connect_on_app_finalize``: called with each app, once, before it is final."""
    told: list[tuple[Any, int]] = []
    task = app.task(name="private-1", shared=False)(body)

    def tell(final: Any) -> None:
        if final is app:
            told.append((final, "private-1" in final._tasks))

    private.connect_on_app_finalize(tell)
    app.finalize()
    app.finalize()
    assert told == [(app, False)]
    assert task.name == "private-1"


def test_an_app_is_asked_for_annotations_of_each_class_that_it_binds(app: Celery) -> None:
    """``app.annotations``: read when a class is bound, and any iterable will do."""
    seen: list[Any] = []

    class Annotation:
        def annotate(self, task: Any) -> None:
            seen.append(task)

    class Lazy:
        def __iter__(self) -> Iterator[Any]:
            yield Annotation()

    private.set_annotations(app, Lazy())
    made = app.task(name="private-2", shared=False)(body)
    assert not seen
    assert made.name == "private-2"
    registered = app.register_task(type("Work", (Task,), {"name": "private-3", "run": body})())
    assert [cls for cls in seen if cls.name in ("private-2", "private-3")] == [
        type(made._get_current_object()),
        type(registered),
    ]


def test_the_setting_comes_to_annotations(app: Celery) -> None:
    """``celery.app.annotations.prepare``: what the app itself makes of ``task_annotations``."""
    app.conf.task_annotations = {"private-5": {"rate_limit": "7/s"}}
    task = app.task(name="private-5", shared=False)(body)
    (annotation,) = private.annotations_of(app)
    assert annotation.annotate(task) == {"rate_limit": "7/s"}
    app.conf.task_annotations = None
    assert not list(private.annotations_of(app))


def test_tasks_are_proxies_before_they_are_tasks(app: Celery) -> None:
    """``celery.local``: what the decorators return, and how to hear of the task behind it."""
    assert (private.Proxy, private.PromiseProxy) == (Proxy, PromiseProxy)
    promise = app.task(name="private-6", shared=False)(body)
    heard: list[str] = []
    private.when_made(promise, lambda cls: heard.append(cls.name))
    assert type(promise) is PromiseProxy
    assert not heard
    assert promise.name
    assert heard == ["private-6"]
    assert type(shared_task(name="private-7")(body)) is Proxy


@pytest.mark.parametrize("bind", [False, True])
def test_a_task_knows_its_function(app: Celery, bind: bool) -> None:
    """``Task.__wrapped__``, bound or not."""
    task = app.task(name=f"private-8-{bind}", shared=False, bind=bind)(body)
    assert private.function_of(task) is body
    assert private.function_of(type(task._get_current_object())) is body


def test_a_task_checks_its_arguments(app: Celery) -> None:
    """``Task.__header__``: what ``apply_async`` checks them by; a class has none."""
    task = app.task(name="private-9", shared=False)(body)
    private.check_arguments(task, (1,), {"text": "a"})
    assert hasattr(task, "__header__")
    with pytest.raises(TypeError, match=re.escape("required positional argument: 'number'")):
        private.check_arguments(task, (), {})
    untyped = app.task(name="private-10", shared=False, typing=False)(body)
    private.check_arguments(untyped, (), {})
    private.check_arguments(
        app.register_task(type("Work", (Task,), {"name": "private-11"})()), (), {}
    )


def test_a_task_says_what_its_messages_are_like(app: Celery) -> None:
    """``Task._get_exec_options``: its own ``expires`` among them."""
    task = app.task(name="private-12", shared=False, expires=7, serializer="pickle")(body)
    options = private.execution_options(task)
    assert (options["expires"], options["serializer"]) == (7, "pickle")
    assert "countdown" not in options


@pytest.mark.parametrize(
    ("broker", "kind", "exchange", "whole"),
    [
        ("amqp://", "quorum", "topic", True),
        ("amqp://", "quorum", "direct", False),
        ("amqp://", "classic", "topic", False),
        ("redis://", "quorum", "topic", False),
    ],
)
def test_quorum_queues_delay_by_whole_seconds(
    app: Celery, broker: str, kind: str, exchange: str, whole: bool
) -> None:
    """``celery.utils.quorum_queues``, the queues that Celery asks there, and its router."""
    own = Queue("own", Exchange("own", type=exchange), queue_arguments={"x-queue-type": kind})
    other = Queue("other", Exchange("other", type="direct"))
    app.conf.update(broker_url=broker, task_queues=[own, other], task_default_queue="own")
    task = app.task(name="private-14", shared=False)(body)

    def delays(**options: Any) -> bool:
        return private.delays_by_whole_seconds(task, (1,), {}, options)

    whole = whole and find_spec("celery.utils.quorum_queues") is not None  # Celery 5.5
    assert delays() is whole
    assert delays(queue="own") is delays(queue=own) is whole
    assert delays(queue="other") is False
    app.conf.task_always_eager = True
    assert delays() is False


def test_the_running_task_is_known(app: Celery) -> None:
    """``celery._state.get_current_task``: no proxy, and no app made for the question."""

    def running() -> str:
        return str(private.running_task().name)

    task = app.task(name="private-13", shared=False)(running)
    assert private.running_task() is None
    assert task.apply().get() == "private-13"


def test_a_call_in_a_worker_is_known(app: Celery) -> None:
    """However deep; eager and direct calls count for what they are called in."""
    seen: list[bool] = []

    @app.task
    def inner() -> None:
        seen.append(private.in_worker())

    @app.task
    def outer() -> None:
        for call in (inner, inner.apply):
            call()

    for call in (inner, inner.apply, outer, outer.apply):
        call()
    assert seen == [False] * 6
    seen.clear()
    tracer = build_tracer("outer", outer, app=app)
    tracer("id", (), {}, {"id": "id", "delivery_info": {}})
    assert seen == [True, True]
    assert not private.in_worker()
