"""The Celery app, and the hook that sets the SDK up in each child."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.apps.traced.settings")

from celery import Celery
from celery.signals import worker_process_init
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from django_redis_lock.celery import single_instance_task
from tests.apps.traced.tracing import set_up_tracing
from tests.settings import server_url
from tests.tools.celery_worker import tell_and_wait

app = Celery("traced", broker=server_url(10), backend=server_url(11))
app.conf.update(
    broker_transport_options={"app": "traced"},
    broker_connection_retry_on_startup=True,
    task_default_queue="traced",
    worker_prefetch_multiplier=1,
)
app.set_default()
app.set_current()


@worker_process_init.connect(weak=False)
def _set_up(**kwargs: Any) -> None:
    set_up_tracing()
    CeleryInstrumentor().instrument()


@app.task(name="traced.report")
@single_instance_task(key=lambda what: f"report:{what}")
def report(what: str) -> str:
    return tell_and_wait(what)
