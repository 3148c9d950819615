"""The checks of guarded tasks against time limits and the broker."""

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

from django_redis_lock.celery import single_instance_task
from django_redis_lock.celery.polling import Pollers
from django_redis_lock.exceptions import InvalidLockBackend


def found(name: str) -> list[str]:
    """Return the ids of what the checks say of a task, each of them with a way out."""
    messages = [item for item in run_checks() if str(item.msg).startswith(f"Task {name} ")]
    assert all(message.hint for message in messages)
    return [str(message.id).rpartition(".")[2] for message in messages]


def import_errors(**options: Any) -> list[str]:
    return [item.msg for item in run_checks(**options) if item.id == "django_redis_lock.E015"]


def guarded(app: Celery, name: str, of_task: Any = None, **options: Any) -> Any:
    """Return a task with a guard."""

    def work(text: str = "") -> None: ...

    return app.task(name=name, shared=False, **of_task or {})(single_instance_task(**options)(work))


def visible(seconds: int) -> dict[str, Any]:
    return {"broker_transport_options": {"visibility_timeout": seconds}}


@pytest.mark.parametrize(
    ("lease", "of_task", "of_app", "ids"),
    [
        ({}, {}, {}, []),
        ({"timeout": 60}, {}, {"task_time_limit": "70"}, ["W002"]),
        ({"timeout": 60}, {"time_limit": 50}, {"task_time_limit": 70}, []),
        ({"timeout": 60}, {"acks_late": True}, {}, ["W003"]),
        ({"timeout": None}, {"acks_late": True}, {}, []),
        ({"timeout": 4000}, {"acks_late": True}, {}, ["W003", "W004"]),
        ({}, {"acks_late": True, "time_limit": 4000}, {}, ["W004"]),
        ({}, {"acks_late": True, "time_limit": 4000}, {"broker_url": "amqp://host//"}, []),
        ({}, {"acks_late": True, "time_limit": 4000}, visible(5000), []),
        ({}, {"acks_late": True, "time_limit": 40}, visible(30), ["W004"]),
    ],
)
def test_leases_against_limits(
    own_app: Celery,
    name: str,
    lease: dict[str, Any],
    of_task: dict[str, Any],
    of_app: dict[str, Any],
    ids: list[str],
) -> None:
    """A lease that a run can outlive, or a broker that redelivers meanwhile, is found."""
    own_app.conf.update({"broker_url": "redis://127.0.0.1:1/0", **of_app})
    guarded(own_app, name, of_task, **lease)
    assert found(name) == ids


@pytest.mark.parametrize(
    ("using", "concurrency", "ids"),
    [
        ("redlock", 2, ["E010"]),
        ("redlock", lambda text: 2, ["E010"]),
        ("redlock", 1, []),
        ("getset", 1, ["E010"]),
        ("default", 2, []),
    ],
)
def test_locks_that_can_not_be_shared(
    own_app: Celery, name: str, settings: Any, using: str, concurrency: Any, ids: list[str]
) -> None:
    """Several runs need others. Their calls, and their sending, raise an error that says so."""
    backends = "django_redis_lock.backends"
    servers = [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]
    settings.LOCKS = {
        **settings.LOCKS,
        "redlock": {"BACKEND": f"{backends}.redlock.RedlockLockBackend", "LOCATION": servers},
        "getset": {"BACKEND": f"{backends}.getset.GetSetLockBackend", "LOCATION": servers[0]},
    }
    sharing = {"using": using, "concurrency": concurrency, "scope": "queue_and_run"}
    work = guarded(own_app, name, on_unavailable="run", **sharing)
    assert found(name) == ids
    if ids:
        for call in (work, work.delay):
            with pytest.raises(InvalidLockBackend, match=r"can't be (shared|guarded)"):
                call("ab")


@pytest.mark.parametrize(
    ("using", "policy", "ids"),
    [
        ("default", "park", []),
        ("locmem", "wait", []),
        ("locmem", "park", ["E012"]),
        ("nope", "park", ["E013"]),
        ("locmem", {"queue": "skip", "run": "park"}, ["E012"]),
    ],
)
def test_locks_that_can_not_park(
    own_app: Celery, name: str, using: str, policy: Any, ids: list[str]
) -> None:
    scope = "run" if isinstance(policy, str) else "queue_and_run"
    guarded(own_app, name, using=using, on_conflict=policy, scope=scope)
    assert found(name) == ids


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
    """A worker, which imports all its tasks, checks them when it is ready."""
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
    """The error is the same each time. ``migrate`` and workers don't import the tasks for it."""
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

    assert import_errors(databases=["default"]) == []
    with monkeypatch.context() as patch:
        patch.setattr(own_app.loader, "worker_initialized", True)
        assert import_errors() == []
    (text,) = found = import_errors()
    assert told in text
    assert import_errors() == found
    assert tmp_path / f"{module}.py" in autoreload.iter_all_python_module_files()


def test_a_module_of_tasks_may_read_a_table_that_no_migration_creates_yet(
    own_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ``makemigrations`` could not write the migration."""
    error = OperationalError("no such table: shop_rate")
    monkeypatch.setattr(own_app.loader, "import_default_modules", Mock(side_effect=error))
    own_app.set_current()
    assert import_errors() == []
