"""The leases of guarded Celery tasks against the time that the tasks may take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from django_redis_lock.console.durations import duration
from django_redis_lock.console.findings import OK, WARN, Finding

CHECK = "leases"


def examine_leases() -> Iterator[Finding]:
    """Yield what is found of each guarded task; nothing where Celery is not used."""
    try:
        from celery import current_app

        from django_redis_lock.celery.guard import GUARD
    except ImportError:
        return
    app = current_app._get_current_object()
    if not (app.conf.broker_url or app.conf.broker_write_url):
        return
    app.loader.import_default_modules()
    app.finalize(auto=True)
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
        yield Finding(OK, CHECK, f"{sound} guarded tasks have leases that last as long as they run")


def _examine_lease(name: str, lease: Any, limit: float | None) -> Finding | None:
    """Return what is wrong with a task's lease. ``limit`` is its hard time limit in seconds."""
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
