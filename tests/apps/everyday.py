"""Tasks of django.tasks, which go on until a test says so."""

from __future__ import annotations

from django_redis_lock.tasks import single_instance_task
from tests.tools.celery_worker import tell_and_wait

try:
    from django.tasks import task
except ImportError:  # before Django 6.0
    from django_tasks import task


@task
@single_instance_task(key="{shop}")
def skips(shop, what):
    return tell_and_wait(what)


@single_instance_task(key="{shop}", on_conflict="wait")
@task
def waits(shop, what):
    return tell_and_wait(what)


@task
def calls_one_that_waits(shop, what):
    return waits.call(shop, what)
