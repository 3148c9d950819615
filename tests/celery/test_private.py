"""What the guard needs of Celery, kombu and billiard beside their public API is as it was.

Each test tells what changed in a release of theirs, before anything else fails for it.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from kombu import Exchange, Queue

from django_redis_lock.celery import private
from tests.tools import ROOT, syntax_tree

PRIVATE_MODULES = ("celery._state", "celery.local", "celery.app.annotations", "billiard")
PRIVATE_ATTRIBUTES = {
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
    own_app: Celery, broker: str, kind: str, exchange: str, whole: bool
) -> None:
    """``celery.utils.quorum_queues``, the queues that Celery asks there, and its router."""
    own = Queue("own", Exchange("own", type=exchange), queue_arguments={"x-queue-type": kind})
    other = Queue("other", Exchange("other", type="direct"))
    own_app.conf.update(broker_url=broker, task_queues=[own, other], task_default_queue="own")
    task = own_app.task(name="private-14", shared=False)(body)

    def delays(**options: Any) -> bool:
        return private.delays_by_whole_seconds(task, (1,), {}, options)

    whole = whole and find_spec("celery.utils.quorum_queues") is not None  # Celery 5.5
    assert delays() is whole
    assert delays(queue="own") is delays(queue=own) is whole
    assert delays(queue="other") is False
    own_app.conf.task_always_eager = True
    assert delays() is False


def test_a_call_in_a_worker_is_known(own_app: Celery) -> None:
    """However deep; eager and direct calls count for what they are called in."""

    @own_app.task
    def inner() -> bool:
        return private.in_worker()

    @own_app.task
    def outer() -> list[bool]:
        return [inner(), inner.apply().get()]

    assert (outer(), outer.apply().get()) == ([False, False], [False, False])
    tracer = build_tracer("outer", outer, app=own_app)
    traced = tracer("id", (), {}, {"id": "id", "delivery_info": {}})
    assert traced.retval == [True, True]
    assert not private.in_worker()
