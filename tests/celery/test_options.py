"""What all tasks are told, and what a duplicate's result looks like."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_redis_lock import lock
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from django_redis_lock.support.arguments import DEFAULT


def work() -> str:
    """Have nothing to do."""
    return "ran"


# Results.


# All tasks.


def test_an_app_has_defaults(own_app: Celery, name: str, settings: Any) -> None:
    """Under what the decorator says."""
    settings.SINGLE_INSTANCE_TASK = {"using": "locmem", "on_conflict": "raise"}
    plain = own_app.task(name=name, shared=False)(single_instance_task(work))
    skipping = own_app.task(name=f"{name}-2", shared=False)(
        single_instance_task(key=name, on_conflict="skip")(work)
    )
    with lock(name, using="locmem"):
        with pytest.raises(TaskAlreadyRunning):
            plain.apply().get()
        assert skipping.apply().get()["skipped"]
        settings.SINGLE_INSTANCE_TASK = {"using": "locmem"}
        assert plain.apply().get()["skipped"]


def test_another_policy_does_without_the_time_of_the_default(settings: Any) -> None:
    """``blocking_timeout`` goes with the ``on_conflict`` that it belongs to."""
    settings.SINGLE_INSTANCE_TASK = {"on_conflict": "wait", "blocking_timeout": 3}
    guard = single_instance_task(on_conflict="skip")(work).single_instance_guard
    assert guard.options.blocking_timeout is DEFAULT
    guard = single_instance_task(blocking_timeout=5)(work).single_instance_guard
    assert guard.options.on_run_conflict == "wait"
    assert guard.options.blocking_timeout == 5


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("queue", "must be a dict, not 'queue'"),
        ({"scop": "queue"}, "'scop' is not an option"),
        ({"scope": "que"}, "scope='que' is unknown"),
        ({"key": "a"}, "can't have 'key'"),
        ({"turns": "a"}, "can't have 'turns'"),
        ({"countdown": "1"}, "countdown='1' must be a number"),
        ({"using": "nope"}, "using='nope' is not an alias of LOCKS"),
    ],
)
def test_wrong_defaults_are_found(
    own_app: Celery, name: str, settings: Any, given: Any, text: str
) -> None:
    """By the system checks, and at the first use; the import of tasks goes on."""
    settings.SINGLE_INSTANCE_TASK = given
    task = own_app.task(name=name, shared=False)(single_instance_task(work))
    (found,) = [item for item in run_checks() if item.id == "django_redis_lock.E008"]
    assert text in found.msg
    with pytest.raises(ImproperlyConfigured):
        task.apply().get()


def test_a_task_that_does_not_fit_the_defaults_is_found(
    own_app: Celery, name: str, settings: Any
) -> None:
    """The checks name the task; where the setting is there before it, the import fails."""
    guard = single_instance_task(on_conflict="supersede", scope="queue", using="locmem")
    own_app.task(name=name, shared=False)(guard(work))
    other = own_app.task(name=f"{name}-2", shared=False)(single_instance_task(scope="queue")(work))
    settings.SINGLE_INSTANCE_TASK = {"on_conflict": "wait"}
    found = [item.msg for item in run_checks() if item.id == "django_redis_lock.E008"]
    (message,) = [item for item in found if name in item]
    assert f"Task {name}-2 does not fit SINGLE_INSTANCE_TASK" in message
    with pytest.raises(ValueError, match=r"'queue'.*'wait' is unknown"):
        other.delay()
    with pytest.raises(ValueError, match=r"'queue'.*'wait' is unknown"):
        single_instance_task(scope="queue")(work)


# A server that is silent.
