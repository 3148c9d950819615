"""Celery tasks of which at most one instance runs at a time."""

from django_redis_lock.celery import (  # noqa: F401 - they connect to signals
    checks,
    deaths,
    dropped,
    inspecting,
)
from django_redis_lock.celery.conflicts import (
    Conflict,
    TaskAlreadyRunning,
    TaskSkipped,
    skipped,
    task_lock_lost,
    task_skipped,
    task_taken_over,
    task_waiting,
)
from django_redis_lock.celery.decorator import single_instance_task

__all__ = [
    "Conflict",
    "TaskAlreadyRunning",
    "TaskSkipped",
    "single_instance_task",
    "skipped",
    "task_lock_lost",
    "task_skipped",
    "task_taken_over",
    "task_waiting",
]
