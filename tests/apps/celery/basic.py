"""Tasks guarded in each way: above and below Celery's decorator, shared, bound, class-based."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task, shared_task

from django_redis_lock import lock
from django_redis_lock.celery import single_instance_task
from django_redis_lock.exceptions import LockError
from tests.apps.celery.app import app
from tests.tools.celery_worker import tell_and_wait


@app.task(shared=False)
@single_instance_task
def below(what: str) -> str:
    """Guarded below Celery's decorator, without parentheses."""
    return tell_and_wait(what)


@single_instance_task()
@app.task(shared=False, bind=True)
def above(self: Task, what: str) -> list[str]:
    """Guarded above Celery's decorator, bound."""
    return [self.request.id, tell_and_wait(what)]


@shared_task(bind=True)
@single_instance_task(key="shared:{shop_id}")
def shared(self: Task, shop_id: int, what: str = "shared") -> str:
    """A shared task, guarded below, told apart by an argument."""
    return tell_and_wait(what)


@single_instance_task(600, key=lambda shop_id, what: f"callable:{shop_id}")
@shared_task
def shared_above(shop_id: int, what: str) -> str:
    """A shared task, guarded above, with a fixed lease and a callable key."""
    return tell_and_wait(what)


@single_instance_task(key="class:{number}")
class ClassBased(Task):
    """A task that is a class."""

    name = "class-based"

    def run(self, number: int, what: str) -> str:
        """Run."""
        return tell_and_wait(what)


class_based = app.register_task(ClassBased())


@app.task(shared=False, bind=True, max_retries=2)
@single_instance_task
def retrying(self: Task, what: str) -> int:
    """Fails twice and is retried."""
    if self.request.retries < 2:
        raise self.retry(countdown=0, exc=KeyError(what))
    return self.request.retries


@app.task(shared=False, autoretry_for=(KeyError,), max_retries=2, default_retry_delay=0)
@single_instance_task
def autoretrying() -> None:
    """Fails until its retries are exhausted."""
    raise KeyError


@app.task(shared=False)
@single_instance_task(timeout=1)
def losing(what: str) -> str:
    """Outlives its fixed lease."""
    return tell_and_wait(what)


@app.task(shared=False)
@single_instance_task
def nested(inner: bool = False) -> Any:
    """Calls itself while it runs, and waits for its own lock."""
    if inner:
        return "inner"
    with pytest.raises(LockError) as refused:
        lock(nested.name).acquire()
    eager = nested.apply(kwargs={"inner": True}).get(disable_sync_subtasks=False)
    return [nested.name, nested(inner=True), eager, str(refused.value)]
