"""Apps of a test's own, and a consumer of their messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from celery import Celery

from django_redis_lock.tasks.conflicts import logger
from tests.apps.celery.app import app as tests_app
from tests.celery.consumer import Consumer


@pytest.fixture
def own_app() -> Iterator[Celery]:
    """An app of the test's own, which no worker serves."""
    own = Celery("own", broker="memory://", backend="cache+memory://")
    yield own
    own.close()
    tests_app.set_current()


@pytest.fixture
def consumer(name: str) -> Iterator[Consumer]:
    consumer = Consumer(name)
    yield consumer
    consumer.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger.name):
        yield caplog
