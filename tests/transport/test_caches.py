"""Locks on the server of a cache of Django's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.checks import check_locks
from example_project.embedded import EmbeddedServer
from tests.transport.test_connections import exercise

DJANGO = "django.core.cache.backends.redis.RedisCache"


@pytest.fixture
def entry(server: EmbeddedServer, settings: Any) -> dict[str, Any]:
    """The entry of CACHES that the locks use; change it before the first use."""
    entry = {"BACKEND": DJANGO, "LOCATION": server.url(3)}
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": server.url(4)}, "locks": entry}
    settings.LOCKS = {"default": {"LOCATION": "locks"}}
    return entry


@pytest.mark.usefixtures("entry")
def test_it_locks_waits_and_lists(name: str, server: EmbeddedServer) -> None:
    """Blocking and asyncio callers lock in the database of the alias, and wait in its queue."""
    assert list(check_locks()) == []
    exercise(name)
    with lock(name, timeout=5), redis.Redis.from_url(server.url(3)) as client:
        assert client.exists(f"lock:{name}")


def test_options_of_the_alias_count(
    entry: dict[str, Any], server: EmbeddedServer, settings: Any
) -> None:
    """``db``, time limits and the primary of several servers are the alias's; its pool is not."""
    entry["LOCATION"] = [server.url().rpartition("/")[0], "redis://127.0.0.1:1/6"]
    entry["OPTIONS"] = {
        "db": "5",
        "pool_class": "redis.BlockingConnectionPool",
        "socket_timeout": 2,
        "decode_responses": True,
    }
    cleared = {"BACKEND": DJANGO, "LOCATION": server.url(5)}
    settings.CACHES = {**settings.CACHES, "default": cleared}
    assert [each.id for each in check_locks()] == ["django_redis_lock.W001"]
    pool = locks["default"].pool
    assert not isinstance(pool, redis.BlockingConnectionPool)
    assert pool.connection_kwargs["socket_timeout"] == 2
    with lock("a", timeout=5), redis.Redis.from_url(server.url(5)) as client:
        assert client.exists("lock:a")
        assert asyncio.run(lock("a").aowned()) is False
