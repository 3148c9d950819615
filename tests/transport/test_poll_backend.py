"""WAIT "poll" of a backend: a crowd on one lock, and connections that others close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches, close_caches
from django.test import override_settings
from django_redis.cache import RedisCache

from django_redis_lock import Lock, lock, locks
from example_project.embedded import EmbeddedServer
from tests.settings import REDIS
from tests.tools import Background, eventually

pytestmark = pytest.mark.usefixtures("server")

POLL = {"BACKEND": REDIS, "LOCATION": "locks", "OPTIONS": {"WAIT": "poll", "POLL_INTERVAL": 0.02}}


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    with override_settings(LOCKS={"default": POLL}, DJANGO_REDIS_CLOSE_CONNECTION=True):
        yield


def disconnect() -> None:
    locks["default"].pool.disconnect()


def end_request() -> None:
    """Have django-redis close its connections, as it does after a request."""
    assert isinstance(caches["locks"], RedisCache)
    close_caches()


async def take(name: str) -> bool:
    """Take a lock under asyncio, and release it."""
    async with lock(name, timeout=20) as held:
        return bool(await held.aowned())


@pytest.mark.parametrize("close", [disconnect, end_request])
def test_connections_that_are_closed_between_calls(name: str, close: Callable[[], None]) -> None:
    """The next call opens another, whatever it is, and the lock that is held stays held."""
    for _ in range(3):
        with lock(name, timeout=20) as held:
            close()
            held.ensure_held()
            close()
            assert lock(name).acquire(blocking=False) is False
            close()
        close()
        assert asyncio.run(take(name))


@pytest.mark.parametrize("close", [disconnect, end_request])
def test_connections_that_are_closed_during_calls(
    name: str, close: Callable[[], None], own_server: EmbeddedServer
) -> None:
    """Whoever has its connection closed under its hands asks again."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url()}
    with override_settings(CACHES={**settings.CACHES, "locks": cache}):
        with lock(f"{name}-0", timeout=20):
            caches["locks"].get("anything")
        calls: list[Callable[[Lock], Any]] = [Lock.acquire, Lock.ensure_held, Lock.release]
        held = lock(name, timeout=20)
        for call in calls:
            own_server.pause()
            try:
                calling = Background(lambda call=call: call(held))
                eventually(lambda: locks["default"].pool._in_use_connections)
                close()
            finally:
                own_server.resume()
            calling.outcome()
        assert not held.locked()
