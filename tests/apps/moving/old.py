"""The project before it moves over: guarded by celery-once and celery-singleton."""

from __future__ import annotations

from celery_once import QueueOnce
from celery_singleton import Singleton

from tests.apps.moving import IMPORT, INDEX, new_app
from tests.tools.celery_worker import tell_and_wait

app = new_app("old")


@app.task(name=IMPORT, shared=False, base=QueueOnce, once={"keys": ["shop_id"]})
def import_products(shop_id: str, full: bool = False) -> str:
    """Run until the test lets it end."""
    return tell_and_wait(shop_id)


@app.task(name=INDEX, shared=False, base=Singleton, unique_on=["shop_id"])
def build_index(shop_id: str, full: bool = False) -> str:
    """Run until the test lets it end."""
    return tell_and_wait(shop_id)
