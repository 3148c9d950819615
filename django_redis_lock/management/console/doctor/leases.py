"""Compares the leases of guarded Celery tasks with their time limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from django_redis_lock.management.console.doctor.findings import OK, WARN, Finding
from django_redis_lock.management.console.durations import duration
from django_redis_lock.operators.workers import celery_app
from django_redis_lock.support.text import keep_secrets

CHECK = "leases"


def examine_leases() -> Iterator[Finding]:
    """Yield a finding for each unsound task; nothing without Celery."""
    app = celery_app()
    if app is None:
        return
    from django_redis_lock.celery.guard import GUARD

    try:
        app.loader.import_default_modules()
        app.finalize(auto=True)
    except Exception as error:  # any error of the project's modules or checks
        yield Finding(
            WARN,
            CHECK,
            f"not known: the tasks can't be loaded: {keep_secrets(error)}",
            "Mend what it names; manage.py check may tell more.",
        )
        return
    guarded = 0
    sound = 0
    for name, task in sorted(app.tasks.items()):
        guard = getattr(task, GUARD, None)
        if guard is None:
            continue
        guarded += 1
        limit = task.time_limit or app.conf.task_time_limit
        found = _examine_lease(name, guard.options.timeout, limit)
        if found:
            yield found
        else:
            sound += 1
    if sound or not guarded:
        yield sound_leases(sound)


def sound_leases(number: int) -> Finding:
    """Return the finding for a number of tasks with sound leases."""
    told = f"{number} guarded tasks have leases that last as long as they run"
    if number == 0:
        told = "there are no guarded tasks"
    elif number == 1:
        told = "1 guarded task has a lease that lasts as long as it runs"
    return Finding(OK, CHECK, told)


def _examine_lease(name: str, lease: Any, limit: float | None) -> Finding | None:
    """Return what is wrong with a lease, given the task's hard time limit in seconds."""
    if lease is None:
        return Finding(
            WARN,
            CHECK,
            f"{name} never gives its lock up when its worker dies: its lease has no end",
            "Leave timeout out of single_instance_task: the lease is then renewed while it runs.",
        )
    if not isinstance(lease, int | float) or (limit or math.inf) <= lease:
        return None  # renewed, or longer than the task can run
    runs = f"may run for {duration(limit)}" if limit else "has no time limit"
    return Finding(
        WARN,
        CHECK,
        f"{name} {runs}, and its lease ends after {duration(lease)}",
        "Leave timeout out of single_instance_task, so that the lease is renewed; or set a "
        f"time_limit below {duration(lease)} on the task.",
    )
