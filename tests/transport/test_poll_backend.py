"""WAIT "poll" of a backend beside a cache that closes its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from django.core.cache import caches, close_caches
from django.test import override_settings
from django_redis.cache import RedisCache

from django_redis_lock import lock, locks
from tests.settings import REDIS

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
    """They are the cache's own, and those of the locks stay open."""
    for _ in range(3):
        with lock(name, timeout=20) as held:
            close()
            held.ensure_held()
            close()
            assert lock(name).acquire(blocking=False) is False
            close()
        close()
        assert asyncio.run(take(name))
    assert len(locks["default"].servers.client._idle) == 1
