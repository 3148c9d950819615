"""Commands, workers of ``django.tasks`` and beats that share a database, as in production."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from django.test import override_settings

from django_redis_lock import lock
from example_project.embedded import EmbeddedServer
from example_project.postgres import Postgres
from tests.apps.celery.beats import SCHEDULER
from tests.apps.celery.kept import KEPT
from tests.apps.everyday_settings import DATABASE
from tests.tools import ROOT, eventually
from tests.tools.beats import Beats
from tests.tools.celery_worker import WAIT, events, go, started

Environment = dict[str, str]
DJANGO = [sys.executable, "-m", "django"]
WORKER = ["db_worker", "--interval", "0.05"]
LONG = 100
"""Seconds in which programs end."""


@pytest.fixture
def environment(
    postgres: Postgres, server: EmbeddedServer, own_server: EmbeddedServer, name: str
) -> Environment:
    """What programs need that have an empty database, and a lock server of their own."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    return {
        **os.environ,
        "PYTHONDEVMODE": "",
        "DJANGO_SETTINGS_MODULE": "tests.apps.everyday_settings",
        DATABASE: json.dumps(postgres.settings(NAME=name)),
        KEPT: str(own_server.port),
    }


@contextlib.contextmanager
def programs(environment: Environment, *commands: list[str]) -> Iterator[list[subprocess.Popen]]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = []
    try:
        for words in commands:
            command = [*DJANGO, *words]
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def run(environment: Environment, *words: str) -> str:
    return subprocess.check_output([*DJANGO, *words], cwd=ROOT, env=environment, text=True).strip()


def test_one_of_four_migrates_and_the_others_find_nothing(environment: Environment) -> None:
    command = ["locks", "run", "migrate", "--", *DJANGO, "migrate", "--verbosity", "1"]
    with programs(environment, *[command] * 4) as four:
        texts = [process.communicate(timeout=LONG)[0] for process in four]
        assert [process.returncode for process in four] == [0] * 4
    done = ["Applying contenttypes.0001_initial... OK" in text for text in texts]
    idle = ["No migrations to apply." in text for text in texts]
    assert (done.count(True), idle.count(True)) == (1, 3)


# django.tasks with the workers of django-tasks-db.


def enqueue(environment: Environment, task: str, what: str) -> str:
    code = f"from tests.apps import everyday; print(everyday.{task}.enqueue('7', {what!r}).id)"
    return run(environment, "shell", "--verbosity", "0", "--command", code)


def result(environment: Environment, task_id: str) -> tuple[str, Any]:
    query = (
        "SELECT status, return_value, exception_class_path FROM django_tasks_database_dbtaskresult "
        "WHERE id = %s AND finished_at IS NOT NULL"
    )
    database = json.loads(environment[DATABASE])
    url = (
        f"postgresql://{database['USER']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        row = eventually(lambda: connection.execute(query, [task_id]).fetchone(), task_id)
    return row[0], row[2] or row[1]


def test_workers_run_one_at_a_time(environment: Environment) -> None:
    run(environment, "migrate", "--verbosity", "0")
    with programs(environment, WORKER, WORKER), events() as client:
        first = enqueue(environment, "skips", "a")
        pid = started(client, "a")
        status, answer = result(environment, enqueue(environment, "skips", "b"))
        assert (status, answer["holder"]["pid"]) == ("SUCCESSFUL", pid)
        go(client, "a")
        assert result(environment, first) == ("SUCCESSFUL", "go")
        assert not client.exists("started:b")


@pytest.mark.parametrize("task", ["waits", "calls_one_that_waits"])
def test_a_task_that_waits_in_a_worker_that_is_to_stop_goes_back(
    environment: Environment, own_server: EmbeddedServer, task: str
) -> None:
    """And another worker runs it, as the same task, unless more than its wait had begun."""
    run(environment, "migrate", "--verbosity", "0")
    locked = override_settings(LOCKS={"default": {"LOCATION": own_server.url()}})
    with events() as client, redis.Redis.from_url(own_server.url()) as locks, locked:
        with lock("7", timeout=LONG), programs(environment, WORKER) as (first,):
            waiting = enqueue(environment, task, "a")
            eventually(lambda: locks.zcard("lock-queue:7") == 1, "the task waits")
            first.send_signal(signal.SIGTERM)
            assert first.wait(LONG) == 0
            assert not locks.exists("lock-queue:7")
        if task == "calls_one_that_waits":
            stopped = "django_redis_lock.tasks.WorkerStops"
            assert result(environment, waiting) == ("FAILED", stopped)
            return
        with programs(environment, WORKER):
            started(client, "a")
            go(client, "a")
            assert result(environment, waiting) == ("SUCCESSFUL", "go")


# Beats with the scheduler of django-celery-beat.

ENTRIES = """
from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask
often = IntervalSchedule.objects.create(every=250_000, period=IntervalSchedule.MICROSECONDS)
at_once = ClockedSchedule.objects.create(clocked_time=timezone.now())
PeriodicTask.objects.create(name="tick", task="tick", interval=often)
PeriodicTask.objects.create(name="once", task="once", clocked=at_once, one_off=True)
"""


def test_beats_with_a_schedule_in_the_database(environment: Environment, tmp_path: Path) -> None:
    """What is due once is sent once, though its sender was killed before it could store that."""
    run(environment, "migrate", "--verbosity", "0")
    run(environment, "shell", "--verbosity", "0", "--command", ENTRIES)
    scheduler = {SCHEDULER: "django_celery_beat.schedulers:DatabaseScheduler"}
    beats = Beats(tmp_path, **environment, **scheduler)
    try:
        for number in (signal.SIGKILL, signal.SIGTERM):
            beats.start()
            leader = beats.next_leader()
            eventually(lambda: beats.sent("once"))
            standby = beats.start()
            leader.process.send_signal(number)
            leader.process.wait(WAIT)
            assert beats.next_leader() is standby
            standby.process.terminate()
            standby.process.wait(WAIT)
        beats.check()
        assert len(beats.sent("once")) == 1
    finally:
        beats.kill()


ENABLED_AGAIN = """
from datetime import timedelta
from time import time
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_redis_lock.transport.parking import NoteTick
from django_redis_lock.celery import LeaderScheduler
from django_redis_lock.protocol.calls import ask
from tests.apps.celery.beats import app
hourly = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
past = timezone.now() - timedelta(days=9)
PeriodicTask.objects.create(name="kept", task="none", interval=hourly)
PeriodicTask.objects.create(name="again", task="none", interval=hourly)
PeriodicTask.objects.create(
    name="once again", task="none", interval=hourly, start_time=past, one_off=True
)
leader = LeaderScheduler(app=app)
leader._take_lead()
for task in PeriodicTask.objects.exclude(name__startswith="celery."):
    token, at = leader._lock.held_lease().token, time() - 86400 * (task.name != "kept")
    assert leader._backend.run(ask(NoteTick(leader.lock_name, token, task.name, at))) == 1
    for enabled in (False, True):
        if task.name != "kept":
            task.enabled = enabled
            task.save()
leader.close()
leader._take_lead()
leader._led.populate_heap()
for name in ("kept", "again", "once again"):
    entry = leader._led.schedule[name]
    print(name, entry.is_due()[0], entry.total_run_count, sep=", ")
leader.close()
"""


def test_a_task_that_is_enabled_again(environment: Environment) -> None:
    """It is due when django-celery-beat says so, whatever was sent before it was disabled."""
    run(environment, "migrate", "--verbosity", "0")
    scheduler = {SCHEDULER: "django_celery_beat.schedulers:DatabaseScheduler"}
    words = ("shell", "--verbosity", "0", "--command", ENABLED_AGAIN)
    told = run({**environment, **scheduler}, *words).splitlines()
    assert told == ["kept, False, 1", "again, False, 0", "once again, True, 0"]
