"""A task that the admin page shows."""

from __future__ import annotations

from django_redis_lock.celery import single_instance_task
from tests.apps.celery.app import app
from tests.tools.celery_worker import events


@app.task(shared=False)
@single_instance_task(key="import:{shop_id}")
def import_products(shop_id: int) -> None:
    """Hold the lock of a shop until the test says so."""
    with events() as client:
        client.blpop([f"end:{shop_id}"], timeout=60)
