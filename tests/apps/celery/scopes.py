"""A task whose run retries while others wait for its lock."""

from __future__ import annotations

from celery import Task

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import QUEUE_AND_RUN, app
from tests.tools.celery_worker import counted, tell_and_wait


@app.task(shared=False, name="returning", bind=True, max_retries=2)
@single_instance_task(
    scope=QUEUE_AND_RUN, key="returning:{what}", on_conflict={"run": "wait"}, countdown=0.1
)
def returning(self: Task, what: str) -> int:
    with counted(what):
        if tell_and_wait(what) == "retry":
            raise self.retry(countdown=0.5)
        return int(self.request.retries)
