"""A worker for the tests of a module, and what they say to its tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis

from example_project.embedded import EmbeddedServer
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
