"""The app of the worker of quorum queues."""

from __future__ import annotations

import os

import django

django.setup()

from tests.apps.celery.quorum import make_app  # noqa: E402
from tests.brokers.settings import BROKER  # noqa: E402 - as the tasks' result backends need it

app = make_app(os.environ[BROKER])
