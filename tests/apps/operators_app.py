"""The Celery app whose stuck tasks an operator breaks in the tests."""

from __future__ import annotations

import os

import redis
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_redis_lock.celery import single_instance_task
from tests.settings import server_url

app = Celery(
    "operators",
    broker=server_url(13),
    backend=server_url(14),
    fixups=["celery.fixups.django:DjangoFixup"],
    set_as_current=False,
)
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="operators")


def events() -> redis.Redis:
    return redis.Redis.from_url(server_url(15), decode_responses=True, socket_timeout=None)


@app.task(name="shop.import_catalogue")
@single_instance_task(key="import:{shop}")
def import_catalogue(shop: str) -> str:
    with events() as client:
        client.rpush(f"started:{shop}", os.getpid())
        heard = client.blpop([f"go:{shop}"], timeout=60)
    return "done" if heard else "nobody said go"
