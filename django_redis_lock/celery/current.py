"""The guarded runs that this thread or greenlet is in, and the locks that they have."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.dispatch import receiver

from django_redis_lock.celery.key_locks import TaskLock
from django_redis_lock.celery.run import Run
from django_redis_lock.signals import lock_lost, never_blocks
from django_redis_lock.tasks.conflicts import logger, task_lock_lost

all_runs: ContextVar[tuple[Run, ...]] = ContextVar("django_redis_lock_runs", default=())

runs = all_runs.get
"""Returns the guarded runs that this thread or greenlet is in, the innermost last."""


def current_lock(task: Any = None) -> TaskLock | None:
    """Return the lock of the innermost guarded run, or of the innermost run of a task."""
    for run in reversed(runs()):
        if run.lock is not None and (task is None or run.task.name == task.name):
            return run.lock
    return None


@receiver(lock_lost, weak=False)
@never_blocks  # no task's lock is held by asyncio code
def _on_lock_lost(lock: Any = None, **kwargs: Any) -> None:
    if not isinstance(lock, TaskLock):
        return
    logger.error("Task %s[%s] runs on without its lock %r", lock.task.name, lock.task_id, lock.name)
    task_lock_lost.send_robust(sender=lock.task, task_id=lock.task_id, key=lock.name, holder=None)
