"""The audit and the queue as they stand on a real server: lost replies, refusals, other writers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockError
from django_redis_lock.transport import packing
from example_project.embedded import EmbeddedServer
from tests.tools import Background, eventually, waiters
from tests.tools.proxy import Proxy

AUDIT = "lock-audit"


@pytest.fixture
def proxy(server: EmbeddedServer, settings: Any) -> Iterator[Proxy]:
    """A proxy that the default alias goes through; "direct" goes around it."""
    with Proxy(server.port) as proxy:
        settings.LOCKS = {
            "default": {"LOCATION": f"redis://127.0.0.1:{proxy.port}/0"},
            "direct": {"LOCATION": server.url()},
        }
        # The server knows the scripts: a reply that is lost is the one to the work, not NOSCRIPT.
        held = lock("warm-up", using="direct")
        held.acquire()
        locks["direct"].force_release("warm-up")
        assert not held.owned()
        yield proxy
        locks.reset()


def test_lost_reply_to_a_forced_release_is_one_entry(name: str, proxy: Proxy) -> None:
    """A forced release that is sent twice is in the audit once."""
    lock(name, using="direct").acquire()
    proxy.lose_replies(1, marker=packing.FORCE_RELEASE.sha.encode())
    assert locks["default"].force_release(name, by="ada", reason="stuck")
    assert proxy.lost.acquire(timeout=1)
    (entry,) = locks["direct"].history(name)
    assert (entry.event, entry.by, entry.reason) == ("force_released", "ada", "stuck")


def test_refused_audit_stops_a_forced_release(name: str, client: redis.Redis) -> None:
    """What leaves no trace is not done: the holder keeps its lock, and the error says why."""
    client.set(AUDIT, "another program's")
    with lock(name) as held:
        with pytest.raises(LockError, match=r"not a lock: WRONGTYPE .* value\. Choose"):
            locks["default"].force_release(name)
        held.ensure_held()


def test_time_of_waiting_is_the_servers(
    name: str, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose wall clock is wrong waits since when the server says."""
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("time.time", lambda: 0.0)
    with lock(name):
        acquired_at = locks["default"].holder(name).acquired_at
        for _ in range(2):
            waiting = Background(lambda: lock(name).acquire(blocking_timeout=0.3))
            eventually(lambda: waiters(name) == 1)
            (waiter,) = locks["default"].waiting(name)
            assert -0.02 < (waiter.since - acquired_at).total_seconds() < 5
            assert waiting.outcome() is False
