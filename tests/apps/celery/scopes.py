"""Tasks of each scope and policy, and their signals."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import celery.exceptions
from celery import Task
from celery.signals import worker_process_init
from django.dispatch import Signal

from django_redis_lock.celery import (
    Conflict,
    single_instance_task,
    task_lock_lost,
    task_skipped,
    task_taken_over,
    task_waiting,
)
from tests.apps.celery.app import QUEUE, QUEUE_AND_RUN, RUN, SCOPES, app, new_app
from tests.tools.celery_worker import counted, events, record, tell, tell_and_wait

beat_app = new_app("beat")
"""Sends a task of which it knows only the name."""


def define(
    scope: str, name: str, function: Callable[..., Any], task: Any = None, **options: Any
) -> Any:
    """Return a guarded task whose key is its name and the argument ``what``."""
    name = f"{name}-{scope}"
    guard = single_instance_task(scope=scope, key=name + ":{what}", **options)
    return app.task(shared=False, name=name, **(task or {}))(guard(function))


def always(scope: str, policy: str) -> dict[str, Any]:
    """Return the options of a policy at every moment that a scope knows."""
    return {"on_conflict": policy if scope == RUN else {"queue": policy, "run": policy}}


# Bodies.


def wait(what: str) -> str:
    record(what, "ran")
    return tell_and_wait(what)


def retry(self: Task, what: str, failures: int) -> int:
    """Fail a number of times, with a call of ``retry()``."""
    with counted(what):
        if self.request.retries < failures:
            raise self.retry(countdown=0, exc=KeyError(what))
        return self.request.retries


def fail(self: Task, what: str, failures: int) -> int:
    with counted(what):
        if self.request.retries < failures:
            raise KeyError(what)
        return self.request.retries


def wait_or_fail(self: Task, what: str) -> str:
    record(what, self.request.retries)
    said = tell_and_wait(what)
    if said == "fail":
        raise KeyError(what)
    return f"{said} {self.request.retries}"


def leave(self: Task, what: str, how: str) -> Any:
    """End in a way that is neither success nor failure."""
    tell(what)
    if how == "replace":
        raise self.replace(echo.si("replaced"))
    if how == "replace by another":
        raise self.replace(quick.si(what))
    if how == "replace by itself":
        raise self.replace(self.si(what, "end"))
    if how == "end":
        return "end"
    ends = {
        "ignore": celery.exceptions.Ignore(),
        "reject": celery.exceptions.Reject("", requeue=False),
    }
    raise ends[how]


def come_back(self: Task, what: str) -> int:
    with counted(what):
        if tell_and_wait(what) == "retry":
            raise self.retry(countdown=0.5)
        return self.request.retries


def be_quick(what: str) -> str:
    return what


def join(self: Task, *items: Any, what: str, hold: bool = False) -> str:
    """Be part of a canvas, or run until the test says go."""
    record(what, "holder" if hold else "member")
    if hold:
        tell_and_wait(what)
    return "ran"


def answer(conflict: Conflict) -> dict[str, Any]:
    return {"key": conflict.key, "holder": (conflict.described or {}).get("task_id")}


# Tasks. A table has one for each scope.

BOUND = {"bind": True, "max_retries": 2, "default_retry_delay": 0}
SAFE = {"acks_late": True, "reject_on_worker_lost": True}

plain = {
    scope: define(scope, "plain", wait, **({"countdown": 0.1} if scope == QUEUE else {}))
    for scope in SCOPES
}
retrying = {scope: define(scope, "retrying", retry, BOUND) for scope in SCOPES}
autoretrying = {
    scope: define(scope, "autoretrying", fail, {**BOUND, "autoretry_for": (KeyError,)})
    for scope in SCOPES
}
beside = {scope: define(scope, "beside", retry, BOUND, concurrency=2) for scope in SCOPES}
"""May run beside others, but not beside themselves."""
leaving = {scope: define(scope, "leaving", leave, BOUND) for scope in SCOPES}
BURNING = {**BOUND, "autoretry_for": (Exception,), "max_retries": 1}
burning = {
    "raise": define(RUN, "burning-raise", wait_or_fail, BURNING, on_conflict="raise"),
    "retry": define(
        RUN, "burning-retry", wait_or_fail, BURNING, on_conflict="retry", countdown=0.1
    ),
}
returning = define(
    QUEUE_AND_RUN, "returning", come_back, BOUND, on_conflict={"run": "wait"}, countdown=0.1
)
quick = define(QUEUE_AND_RUN, "quick", be_quick)
closed = {
    (scope, then): define(scope, f"closed-{then}", wait, using="closed", on_unavailable=then)
    for scope in SCOPES
    for then in ("raise", "run")
}

POLICIES: dict[str, dict[str, Any]] = {
    "callable": {"on_conflict": answer},
    "wait": {"on_conflict": {"run": "wait"}, "blocking_timeout": 0.3},
    "retry": {"on_conflict": {"run": "retry"}, "countdown": 0.1, "max_retries": 2},
}


def policy_for(scope: str, policy: str) -> dict[str, Any]:
    return POLICIES.get(policy) or always(scope, policy)


members = {
    (scope, policy): define(
        scope, f"member-{policy}", join, {"bind": True}, **policy_for(scope, policy)
    )
    for scope in SCOPES
    for policy in ("skip", "raise", *POLICIES)
}


@app.task(shared=False, name="echo")
def echo(*items: Any) -> Any:
    return items[-1] if items else None


@app.task(shared=False, name="total")
def total(items: list[Any]) -> list[Any]:
    return items


def _tell(kind: str, sender: Any, task_id: str, key: str, holder: Any, **kwargs: Any) -> None:
    told = {"kind": kind, "task": sender.name, "key": key, "holder": holder and holder.task_id}
    with events() as client:
        client.rpush(f"signals:{task_id}", json.dumps(told))


@worker_process_init.connect
def _listen(**kwargs: Any) -> None:
    signals: dict[str, Signal] = {
        "skipped": task_skipped,
        "waiting": task_waiting,
        "taken over": task_taken_over,
        "lost": task_lock_lost,
    }
    for kind, signal in signals.items():
        signal.connect(partial(_tell, kind), weak=False)
