"""Celery tasks of which at most one instance runs at a time, and the beat that leads."""

try:
    import celery  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "celery":
        raise
    raise ModuleNotFoundError(
        "django_redis_lock.celery needs Celery: run "
        "python -m pip install 'django-redis-lock[celery]'.",
        name="celery",
    ) from error

from django_redis_lock.celery import checks, freeing  # noqa: F401 - they connect to signals
from django_redis_lock.celery.beat import LeaderScheduler
from django_redis_lock.celery.guard import single_instance_task
from django_redis_lock.tasks.conflicts import (
    Conflict,
    TaskAlreadyRunning,
    TaskSkipped,
    parked,
    skipped,
    task_lock_lost,
    task_parked,
    task_skipped,
    task_taken_over,
    task_waiting,
)

__all__ = [
    "Conflict",
    "LeaderScheduler",
    "TaskAlreadyRunning",
    "TaskSkipped",
    "parked",
    "single_instance_task",
    "skipped",
    "task_lock_lost",
    "task_parked",
    "task_skipped",
    "task_taken_over",
    "task_waiting",
]
