"""The apps of the workers of these tests: ``app``, and ``quorum`` on quorum queues."""

from __future__ import annotations

import os

import django

django.setup()

from tests.apps.celery import brokers  # noqa: E402
from tests.apps.celery import quorum as quorums  # noqa: E402
from tests.brokers.settings import BROKER  # noqa: E402 - as the tasks' result backends need it

app = brokers.make_app(os.environ[BROKER], brokers.WORKER)
quorum = quorums.make_app(os.environ[BROKER])
