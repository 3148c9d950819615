"""A Celery app whose tasks take locks for as long as a test wants."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import redis
from celery import Celery

from django_redis_lock.celery import single_instance_task
from tests.settings import server_url

app = Celery(
    "browser",
    broker=server_url(10),
    fixups=["celery.fixups.django:DjangoFixup"],
    set_as_current=False,
)
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="browser")


def events() -> redis.Redis:
    """Return a client of the database in which tests let tasks end."""
    return redis.Redis.from_url(server_url(12), decode_responses=True)


@app.task
@single_instance_task(key="import:{shop_id}")
def import_products(shop_id: int) -> None:
    """Hold the lock of a shop until the test says so."""
    with events() as client:
        client.blpop([f"end:{shop_id}"], timeout=60)
