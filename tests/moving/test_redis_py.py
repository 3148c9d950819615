"""From ``cache.lock`` of django-redis and redis-py's ``Lock``: both beside ours, on one server."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_redis_lock import lock, locks
from tests.tools import queue


@pytest.mark.usefixtures("server")
def test_both_exclude_each_other_while_both_run(settings: Any, name: str) -> None:
    settings.LOCKS = {"default": {"LOCATION": "locks", "KEY_PREFIX": ":1"}}
    cache: Any = caches["locks"]
    before, ours = cache.lock(name, timeout=60), lock(name, timeout=10)
    before.acquire()
    (waiting,) = queue(ours)
    assert str(locks["default"].holder(name)).startswith("another program")
    assert list(locks["default"].holders()) == []  # it is in no index
    before.release()
    assert waiting.outcome() is True
    assert cache.lock(name).acquire(blocking=False) is False


def test_a_prefix_stands_for_the_start_of_the_old_names(
    client: redis.Redis, settings: Any, name: str
) -> None:
    settings.LOCKS = {"default": {"LOCATION": "locks", "KEY_PREFIX": "shop"}}
    with client.lock(f"shop:{name}", timeout=10):
        assert lock(name, blocking=False).acquire() is False
    with lock(name, timeout=10):
        assert client.lock(f"shop:{name}").acquire(blocking=False) is False
