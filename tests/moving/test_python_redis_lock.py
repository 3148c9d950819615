"""From python-redis-lock: both beside each other, on one server and at one key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis_lock
from redis_lock import Lock as OldLock

from django_redis_lock import lock
from django_redis_lock.signals import lock_released
from tests.settings import server_url
from tests.tools import Background, eventually, queue
from tests.tools.docs import DOCS, blocks

PAGE = DOCS / "how-to/migrate-to.md"


@pytest.fixture
def shared(server: Any) -> Any:
    """A client as python-redis-lock wants it, for the database that has our locks."""
    with redis.Redis.from_url(server_url(), socket_timeout=None) as client:
        yield client


@pytest.fixture
def bridge(server: object) -> Iterator[None]:
    """The receiver that the page defines."""
    (block,) = (block for block in blocks(PAGE) if block.what == "python-redis-lock")
    namespace: dict[str, Any] = {}
    code = block.text.replace("redis://127.0.0.1:6379/1", server_url())
    exec(code, namespace)  # noqa: S102 - our own documentation
    yield
    lock_released.disconnect(namespace["notify_old_waiters"])
    namespace["client"].close()


@pytest.mark.usefixtures("bridge")
def test_both_exclude_each_other_while_both_run(shared: Any, name: str) -> None:
    """With the default prefix the keys are the same; each waiter is told when the other ends."""
    before, held = OldLock(shared, name, expire=60), lock(name, timeout=60)
    assert before.acquire()
    (waiting,) = queue(held)
    before.release()
    assert waiting.outcome() is True
    with pytest.raises(redis_lock.NotAcquired):
        before.release()
    held.ensure_held()
    waiting = Background(lambda: before.acquire(timeout=60))
    eventually(lambda: shared.info("clients")["blocked_clients"])
    held.release()
    assert waiting.outcome() is True
