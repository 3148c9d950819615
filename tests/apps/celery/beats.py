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

SLOTS = {"tick": 0.25, "tock": 10.0}
"""Entries, and the seconds of a slot of each: many a leader ends in the midst of the longer."""
SCHEDULER = "LOCK_TEST_SCHEDULER"
"""The environment variable with the scheduler that is led; it has the schedule in a database."""

beat.STANDBY = 0.2  # before it says so

leaders: list[Any] = []
"""The scheduler of this process."""


class Slots(schedule):
    """Due once in each slot of the clock, as a crontab is in each minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__(timedelta(seconds=seconds))

    def __reduce__(self) -> tuple[type, tuple[float]]:
        return type(self), (self.seconds,)

    def is_due(self, last_run_at: Any) -> tuple[bool, float]:
        now = time()
        due = int(now / self.seconds) > int(last_run_at.timestamp() / self.seconds)
        return due, self.seconds - now % self.seconds


class Brief(LeaderScheduler):
    """Leads for three seconds if it is killed."""

    lease = 3.0


class Noting(Brief):
    """Tells what it has noted, before it sends it."""

    def note(self, entry: Any) -> None:
        super().note(entry)
        tell("noted")


app = new_app("beats", task_default_queue=NOWHERE, task_ignore_result=True)
if SCHEDULER in os.environ:
    app.conf.beat_scheduler = os.environ[SCHEDULER]
else:
    app.conf.beat_schedule = {
        name: {"task": name, "schedule": Slots(seconds)} for name, seconds in SLOTS.items()
    }


@beat_init.connect
def on_start(sender: Any, **kwargs: Any) -> None:
    leaders.append(sender.scheduler)


@before_task_publish.connect
def on_send(**kwargs: Any) -> None:
    tell("sent")


def tell(what: str) -> None:
    (leader,) = leaders
    name, at = max(leader._sent.items(), key=lambda item: item[1])
    slot = int(at / SLOTS.get(name, SLOTS["tick"]))
    sent = {"name": name, "at": at, "slot": slot, "fence": leader._lock.fence, "pid": os.getpid()}
    with events() as client:
        client.rpush(f"{what}:{name}", json.dumps(sent))
