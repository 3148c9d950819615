"""The apps of the workers of these tests: ``app``, and ``quorum`` on quorum queues."""

from __future__ import annotations

import os
from typing import Any

import django
from celery.signals import task_received
from kombu.utils.json import dumps

django.setup()

from tests.apps.celery import brokers  # noqa: E402
from tests.apps.celery import quorum as quorums  # noqa: E402
from tests.brokers.settings import BROKER  # noqa: E402 - as the tasks' result backends need it
from tests.tools.celery_worker import events  # noqa: E402

app = brokers.make_app(os.environ[BROKER], "worker")
quorum = quorums.make_app(os.environ[BROKER])


@task_received.connect
def tell_of_parked(request: Any, **kwargs: Any) -> None:
    """Let the test compare each delivery of a task that is parked with the first."""
    if request.task.name.startswith("parked"):
        message = request.message
        told = {
            "headers": message.headers,
            "properties": message.properties,
            "sent by": [message.delivery_info[name] for name in ("exchange", "routing_key")],
            "content": [message.content_type, message.content_encoding],
            "body": repr(message.payload),
        }
        with events() as client:
            client.rpush(f"received:{request.id}", dumps(told))
