"""Tasks of which at most one instance runs at a time: those of ``django.tasks``.

``django_redis_lock.celery`` has the same for Celery.
"""

from django_redis_lock.tasks.conflicts import TaskAlreadyRunning, TaskSkipped, task_skipped
from django_redis_lock.tasks.guard import single_instance_task

__all__ = ["TaskAlreadyRunning", "TaskSkipped", "single_instance_task", "task_skipped"]
