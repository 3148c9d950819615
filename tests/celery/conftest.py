"""A worker for the tests of a module, and a consumer for those that need none."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from django_redis_lock.tasks.conflicts import logger
from example_project.embedded import EmbeddedServer
from tests.apps.celery.app import app as tests_app
from tests.celery.consumer import Consumer
from tests.tools.celery_worker import Worker, events, worker_of_module


@pytest.fixture(scope="module")
def worker(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker with five child processes."""
    with worker_of_module(
        session_server, tmp_path_factory.mktemp("worker"), concurrency=5
    ) as worker:
        yield worker


@pytest.fixture
def client(worker: Worker) -> Iterator[redis.Redis]:
    """The database through which tasks and tests talk, empty."""
    with events() as client:
        client.flushdb()
        yield client


@pytest.fixture
def what() -> str:
    """What a test's tasks are about, and their keys end with."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def own_app() -> Iterator[Celery]:
    """An app of the test's own, which no worker serves."""
    own = Celery("own", broker="memory://", backend="cache+memory://", set_as_current=False)
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
    """What the guard logs."""
    with caplog.at_level(logging.INFO, logger.name):
        yield caplog
