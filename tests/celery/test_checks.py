"""The checks of guarded tasks, and the setting with the options of all tasks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.signals import worker_ready
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.test import override_settings
from django.utils import autoreload

from django_redis_lock import lock
from django_redis_lock.celery import TaskAlreadyRunning, single_instance_task
from django_redis_lock.celery.polling import Pollers
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.arguments import DEFAULT


def found(name: str) -> list[str]:
    """Return the ids of what the checks say of a task, each of them with a way out."""
    messages = [item for item in run_checks() if str(item.msg).startswith(f"Task {name} ")]
    assert all(message.hint for message in messages)
    return [str(message.id).rpartition(".")[2] for message in messages]


def import_errors(**options: Any) -> list[str]:
    return [item.msg for item in run_checks(**options) if item.id == "django_redis_lock.E015"]


def guarded(app: Celery, name: str, of_task: Any = None, **options: Any) -> Any:
    def work(text: str = "") -> None: ...

    return app.task(name=name, shared=False, **of_task or {})(single_instance_task(**options)(work))


def visible(seconds: int) -> dict[str, Any]:
    return {"broker_transport_options": {"visibility_timeout": seconds}}


LATE: dict[str, Any] = {"acks_late": True}
PARK = {"on_conflict": {"queue": "skip", "run": "park"}, "scope": "queue_and_run"}


@pytest.mark.parametrize(
    ("guard", "of_task", "of_app", "ids"),
    [
        ({}, {}, {}, []),
        ({"timeout": 60}, {}, {"task_time_limit": "70"}, ["W002"]),
        ({"timeout": 60}, {"time_limit": 50}, {"task_time_limit": 70}, []),
        ({"timeout": 60}, LATE, {}, ["W003"]),
        ({"timeout": None}, LATE, {}, []),
        ({"timeout": 4000}, LATE, {}, ["W003", "W004"]),
        ({}, {**LATE, "time_limit": 4000}, {}, ["W004"]),
        ({}, {**LATE, "time_limit": 4000}, {"broker_url": "amqp://host//"}, []),
        ({}, {**LATE, "time_limit": 4000}, visible(5000), []),
        ({}, {**LATE, "time_limit": 40}, visible(30), ["W004"]),
        ({"using": "redlock", "concurrency": lambda text: 2}, {}, {}, ["E010"]),
        ({"using": "getset"}, {}, {}, ["E010"]),
        ({"concurrency": 2}, {}, {}, []),
        ({"on_conflict": "park"}, {}, {}, []),
        ({"using": "locmem", "on_conflict": "wait"}, {}, {}, []),
        ({"using": "locmem", "on_conflict": "park"}, {}, {}, ["E012"]),
        ({"using": "locmem", **PARK}, {}, {}, ["E012"]),
        ({"using": "nope"}, {}, {}, ["E013"]),
    ],
)
def test_options_against_limits_brokers_and_aliases(
    own_app: Celery, name: str, settings: Any, guard: Any, of_task: Any, of_app: Any, ids: list[str]
) -> None:
    """What does not fit is found; where locks can't be shared, a call and its sending say so."""
    backends = "django_redis_lock.backends"
    servers = [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]
    settings.LOCKS = {
        **settings.LOCKS,
        "redlock": {"BACKEND": f"{backends}.redlock.RedlockLockBackend", "LOCATION": servers},
        "getset": {"BACKEND": f"{backends}.getset.GetSetLockBackend", "LOCATION": servers[0]},
    }
    own_app.conf.update({"broker_url": "redis://127.0.0.1:1/0", **of_app})
    work = guarded(own_app, name, of_task, **guard)
    assert found(name) == ids
    if ids == ["E010"]:
        work = guarded(own_app, f"{name}-2", scope="queue_and_run", on_unavailable="run", **guard)
        for call in (work, work.delay):
            with pytest.raises(InvalidLockBackend, match=r"can't (use shared|be guarded)"):
                call("ab")


@pytest.mark.parametrize("policy", ["park", "wait"])
def test_messages_that_can_not_be_signed(own_app: Celery, name: str, policy: Any) -> None:
    """No worker starts that would park some."""
    work = guarded(own_app, name, on_conflict=policy)
    worker = Mock(**{"app.tasks": {name: work}})
    with override_settings(SECRET_KEY=""):
        assert found(name) == (["E014"] if policy == "park" else [])
        with pytest.raises(ImproperlyConfigured) if policy == "park" else nullcontext():
            Pollers(worker).create(worker)


def test_a_worker_logs_what_the_checks_find(
    own_app: Celery, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    guarded(own_app, name, {"time_limit": 70}, timeout=60)
    consumer = Mock(app=own_app, **{"pool.info": {}})
    worker_ready.send(sender=consumer)
    (line,) = [record.message for record in caplog.records if name in record.message]
    assert "W002" in line


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("single_instance_task(on_conflct='skip')(task(print))", "'on_conflct' is not an option"),
        ("def f(): ...\nsingle_instance_task(key='{x}')(task(f))", "names 'x'"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("(", "SyntaxError"),
        ("raise SystemExit", "SystemExit."),
        ("raise OSError('redis://u:secret@h:1')", "redis://***@h:1"),
    ],
)
def test_tasks_that_can_not_be_imported(
    own_app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    """The error is the same each time. Workers don't import the tasks for it."""
    module = f"{tmp_path.name}_tasks"
    (tmp_path / f"{module}.py").write_text(
        "from celery import current_app\n"
        "from django_redis_lock.celery import single_instance_task\n"
        "def task(run): return current_app.task(shared=False)(run)\n"
        f"{source}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own_app.conf.include = [module]
    own_app.set_current()

    with monkeypatch.context() as patch:
        patch.setattr(own_app.loader, "worker_initialized", True)
        assert import_errors() == []
    (text,) = found = import_errors()
    assert told in text
    assert import_errors(databases=["default"]) == found  # which Django 6.1 names in each command
    assert tmp_path / f"{module}.py" in autoreload.iter_all_python_module_files()


def test_a_module_of_tasks_may_read_a_table_that_no_migration_creates_yet(
    own_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ``makemigrations`` could not write the migration, nor ``migrate`` run it."""
    error = OperationalError("no such table: shop_rate")
    monkeypatch.setattr(own_app.loader, "import_default_modules", Mock(side_effect=error))
    own_app.set_current()
    assert import_errors() == []


def work() -> str:
    return "ran"


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
    assert f"Task {name}-2 conflicts with SINGLE_INSTANCE_TASK" in message
    with pytest.raises(ValueError, match=r"'queue'.*'wait' is unknown"):
        other.delay()
    with pytest.raises(ValueError, match=r"'queue'.*'wait' is unknown"):
        single_instance_task(scope="queue")(work)
