"""What the tests of the Celery guards share: an app that no worker serves, and the old locks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from example_project.embedded import EmbeddedServer
from tests.apps.moving import NEW, OLD_LOCKS, new_app
from tests.tools.celery_worker import disconnect


@pytest.fixture
def app(server: EmbeddedServer) -> Iterator[Celery]:
    """An app for tasks that are only sent."""
    made = new_app("nowhere")
    made.conf.task_default_queue = NEW
    yield made
    disconnect(made)
    made.close()


@pytest.fixture
def old_locks(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client for the database of the old locks."""
    with redis.Redis.from_url(OLD_LOCKS, decode_responses=True) as client:
        yield client


@pytest.fixture
def shop() -> str:
    """The argument that tells the calls of a test apart."""
    return "7"
