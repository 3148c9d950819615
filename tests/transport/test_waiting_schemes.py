"""The waiting schemes beside each other on one lock: order, dead waiters, cost, leftovers."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.arguments import WAITING_SCHEMES
from tests.settings import server_url
from tests.tools import Background, eventually, queued, waiters

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture(autouse=True)
def _quick() -> None:
    """Pollers of this process look often."""
    locks["default"].registry_for("poll").interval = 0.1


def stand(name: str, wait: str, number: int, timeout: float = 20) -> Lock:
    """Return a handle that waits, as the one with this number, in a thread of its own."""
    handle = lock(name, timeout=timeout, wait=wait)
    handle.waiting = Background(handle.acquire)
    eventually(lambda: waiters(name) == number)
    return handle


def test_all_schemes_share_one_queue(name: str) -> None:
    """They are served in order of arrival, however they wait, with rising fences."""
    held = lock(name, timeout=60)
    held.acquire()
    queue = [stand(name, wait, number + 1, 60) for number, wait in enumerate(WAITING_SCHEMES * 3)]
    fences = [held.fence]
    for waiter in queue:
        held.release()
        assert not lock(name).acquire(blocking=False)
        assert waiter.waiting.outcome() is True
        assert 20 < waiter.remaining <= 60  # and not for the time to claim it in alone
        held = waiter
        held.ensure_held()
        fences.append(held.fence)
    held.release()
    assert fences == sorted(set(fences))
    assert lock(name).locked() is False


@pytest.mark.parametrize("wait", ["queue", "poll"])
def test_a_waiter_that_is_killed_delays_the_next_by_little(name: str, wait: str) -> None:
    """A dead waiter's turn lasts a moment, and not its lease."""
    held = lock(name, timeout=300)
    held.acquire()
    with queued(name, wait, 300) as dead:
        next_one = stand(name, "queue", 2)
        dead.process.kill()
        dead.process.wait()
        held.release()
        assert next_one.waiting.outcome() is True
        next_one.release()


@pytest.mark.parametrize("wait", WAITING_SCHEMES)
def test_nothing_is_left_behind(name: str, wait: str, client: redis.Redis) -> None:
    """Served or not, waiters leave no key for good: no signal keys, queues and index entries."""
    with lock(name, timeout=20):
        assert lock(name, wait=wait).acquire(blocking_timeout=0.05) is False
        waiter = stand(name, wait, 1)
    assert waiter.waiting.outcome() is True
    waiter.release()
    # A heartbeat may just have asked for the waiter once more, which then is withdrawn.
    eventually(lambda: {k for k in client.keys("*") if client.pttl(k) == -1} == {"lock-fence"})


@pytest.mark.parametrize("wait", ["", "Queue", "pubsub", 1, True, ("poll",)])
def test_an_unknown_scheme_is_refused_at_once(name: str, wait: Any, settings: Any) -> None:
    """The error names the value and what there is, before anything is sent."""
    with pytest.raises(ValueError, match=r"no waiting scheme\. Give 'queue', 'blpop', 'poll'"):
        lock(name, wait=wait)
    settings.LOCKS = {"default": {"LOCATION": "locks", "OPTIONS": {"WAIT": wait}}}
    with pytest.raises(InvalidLockBackend, match="'queue' or 'blpop' or 'poll'"):
        _ = locks["default"]


@pytest.mark.parametrize("wait", ["queue"])
def test_waiter_that_may_not_be_told(
    name: str, wait: str, client: redis.Redis, settings: Any
) -> None:
    """Whose grant could not be sent holds the lock unclaimed, and finds that at its next look."""
    keys = ("~lock:*", "~lock-queue:*", "~lock-index", "~lock-fence", "~lock-seen")
    keys = (*keys, "~lock-permits:*", "~lock-limits")
    client.acl_setuser(
        "mute", enabled=True, passwords=["+secret"], keys=[], categories=["+@all"], reset=True
    )
    client.execute_command("ACL", "SETUSER", "mute", *keys, "-publish")
    mute = {"LOCATION": server_url().replace("//", "//mute:secret@")}
    waiter = lock(name, timeout=60, wait=wait)
    with override_settings(LOCKS={**settings.LOCKS, "mute": mute}):
        held = lock(name, timeout=60, using="mute")
        held.acquire()
        waiting = Background(waiter.acquire)
        eventually(lambda: waiters(name) == 1)
        held.release()
        assert waiting.outcome() is True
        eventually(lambda: client.get(f"lock:{name}").split()[2] == "-")
        assert 16 < locks["default"].holder(name).ttl <= 60
        waiter.release()
        assert not client.exists(f"lock:{name}")
    client.acl_deluser("mute")
