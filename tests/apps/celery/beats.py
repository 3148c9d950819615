"""An app whose beats note what they send: when that was due, by which fence, in which process."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from time import time
from typing import Any

from celery.schedules import schedule
from celery.signals import beat_init, before_task_publish

from django_redis_lock.celery import LeaderScheduler, beat
from tests.apps.celery.app import NOWHERE, new_app
from tests.tools.celery_worker import events

SLOT = 0.25
"""Seconds."""
SCHEDULER = "LOCK_TEST_SCHEDULER"
"""The environment variable with the scheduler that is led; it has the schedule in a database."""

beat.STANDBY = 0.2  # before it says so

leaders: list[Any] = []
"""The scheduler of this process."""


class Slots(schedule):
    """Due once in each slot of the clock, as a crontab is in each minute."""

    def __init__(self) -> None:
        super().__init__(timedelta(seconds=SLOT))

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def is_due(self, last_run_at: Any) -> tuple[bool, float]:
        now = time()
        due = int(now / SLOT) > int(last_run_at.timestamp() / SLOT)
        return due, SLOT - now % SLOT


class Brief(LeaderScheduler):
    """Leads for three seconds if it is killed."""

    lease = 3.0


app = new_app("beats", task_default_queue=NOWHERE, task_ignore_result=True)
if SCHEDULER in os.environ:
    app.conf.beat_scheduler = os.environ[SCHEDULER]
else:
    app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": Slots()}}


@beat_init.connect
def on_start(sender: Any, **kwargs: Any) -> None:
    leaders.append(sender.scheduler)


@before_task_publish.connect
def on_send(**kwargs: Any) -> None:
    (leader,) = leaders
    name, at = max(leader._sent.items(), key=lambda item: item[1])
    sent = {"slot": int(at / SLOT), "fence": leader._lock.fence, "pid": os.getpid()}
    with events() as client:
        client.rpush(f"sent:{name}", json.dumps(sent))
