"""The session's server, and what every test begins with."""

from __future__ import annotations

import functools
import gc
import signal
import uuid
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import redis
from celery import Celery, current_app
from django.utils import translation

from django_redis_lock import handler, locks
from django_redis_lock.backends.locmem import LocMemLockBackend
from example_project.embedded import EmbeddedServer
from tests.settings import PORT
from tests.tools import leave_no_lease
from tests.tools.proxy import Proxy

# Where the tests run in the background, a shell has interrupts ignored, and every program that a
# test starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


# For each connection, redis-py reads the metadata of its package: slower than to connect.
pytest.MonkeyPatch().setattr(metadata, "version", functools.cache(metadata.version))


def pytest_collection_finish() -> None:
    """Collect garbage without a look at all that the modules of the tests hold."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def session_server() -> Iterator[EmbeddedServer]:
    """A server for the whole run on the port of the settings."""
    with EmbeddedServer(port=PORT) as server:
        yield server
        gc.collect()  # results of Celery tasks tell the server when they go


@pytest.fixture
def server(session_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The session's server, empty."""
    with redis.Redis.from_url(session_server.url()) as client:
        client.flushall()
    yield session_server
    leave_no_lease()


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server of the test's own, which it may pause, kill and configure."""
    with EmbeddedServer() as server:
        yield server
    leave_no_lease()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the session's server."""
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        yield client


@pytest.fixture
def proxy(server: EmbeddedServer, settings: Any) -> Iterator[Proxy]:
    """A proxy that the default alias goes through; "direct" goes around it."""
    with Proxy(server.port) as proxy:
        settings.LOCKS = {
            "default": {"LOCATION": f"redis://127.0.0.1:{proxy.port}/0"},
            "direct": {"LOCATION": server.url()},
        }
        yield proxy
        locks.reset()


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    """What a test left in this process, its page's language among it, is not the next one's."""
    yield
    translation.deactivate()
    leave_no_lease()
    LocMemLockBackend("locmem", {}).clear()
    handler.USES.clear()


@pytest.fixture
def no_workers() -> Iterator[None]:
    """No broker of another test's app, which the doctor would ask."""
    before = current_app._get_current_object()
    Celery("without a broker")
    yield
    before.set_current()


@pytest.fixture
def name() -> str:
    """A lock's name that no other test uses."""
    return f"test-{uuid.uuid4()}"
