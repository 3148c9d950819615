"""One project before and after it moves over: both send to the workers of both."""

from __future__ import annotations

from celery import Celery

from tests.settings import server_url

OLD, NEW = QUEUES = ("moving-old", "moving-new")
"""The queues of the workers with the old code and with the new code."""
OLD_LOCKS = server_url(9)
"""Where celery-once and celery-singleton keep their locks."""
IMPORT, INDEX = "shop.tasks.import_products", "shop.tasks.build_index"


def new_app(name: str) -> Celery:
    made = Celery(name, broker=server_url(10), backend=server_url(11), set_as_current=False)
    made.conf.update(
        broker_transport_options={"app": name},  # apart from the pools of other apps
        broker_connection_retry_on_startup=True,
        task_default_queue=OLD,
        worker_prefetch_multiplier=1,
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": OLD_LOCKS}},
        singleton_backend_url=OLD_LOCKS,
    )
    return made
