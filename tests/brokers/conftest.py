"""The brokers, and the workers that serve all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.brokers.rabbitmq import rabbitmq
from tests.brokers.settings import BROKER
from tests.tools.celery_worker import events, running_worker
from tests.tools.proxy import Proxy

SETTINGS = "tests.brokers.settings"
if settings.SETTINGS_MODULE != SETTINGS:
    raise pytest.UsageError(f"These tests need the option --ds={SETTINGS}: make services")

from tests.brokers.site import Broker, RabbitBroker, RedisBroker, Site  # noqa: E402 - needs those


@pytest.fixture(scope="session")
def _database(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        call_command("migrate", verbosity=0)
        yield
        connections.close_all()
    shutil.rmtree(settings.DATABASE_FOLDER)


@pytest.fixture(scope="session", params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, session_server: EmbeddedServer) -> Iterator[Broker]:
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    if request.param == "redis":
        yield RedisBroker()
    else:
        with rabbitmq() as node, Proxy(node.port) as proxy:
            yield RabbitBroker(proxy, node)


@pytest.fixture(scope="session")
def site(
    broker: Broker, _database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    environment = {"DJANGO_SETTINGS_MODULE": SETTINGS, BROKER: broker.url}
    directory = tmp_path_factory.mktemp("worker")
    with (
        running_worker(directory, app="tests.brokers.worker", environment=environment) as worker,
        events() as client,
    ):
        made = Site(broker, worker, client)
        yield made
        made.close()
    locks.reset()


@pytest.fixture(autouse=True)
def _idle(site: Site) -> Iterator[None]:
    """Nothing runs on when a test has ended."""
    yield
    site.let_all_go()
