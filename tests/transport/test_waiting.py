"""Waiting on a real server: hand-off, interruptions, other programs, and what is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
import redis

from django_redis_lock import Lock, lock, locks
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.protocol import drivers, locking
from django_redis_lock.protocol.lease import Request, token_id
from django_redis_lock.protocol.waiting import LocalWaiter
from django_redis_lock.support.arguments import WAITING_SCHEMES
from django_redis_lock.transport import receiving
from django_redis_lock.transport.receiving import ReceivingRegistry
from django_redis_lock.transport.redis_py import BROKEN
from tests.tools import PATIENCE, Background, counted, eventually, handling, waiters
from tests.tools.interruption import Interrupted, Interruption

pytestmark = pytest.mark.usefixtures("server")


def test_a_grant_to_a_waiter_who_has_left_is_given_back(name: str, client: redis.Redis) -> None:
    """At once, so that the next waiter does not wait until its claim is due."""
    now, key = round(time.time() * 1000), f"lock:{name}"
    registry = locks["default"].registry_for("queue")
    value = f"7 {now + 60_000}:60000:c0-1"
    for shared in (False, True):
        if shared:
            permit = token_id(b"gone")
            client.zadd(key, {permit: now + 60_000})
            client.hset(f"lock-permits:{name}", permit, f"- {value} 1 {{}}")
        else:
            client.set(key, f"gone {value} - {{}}", px=60_000)
        registry.take_in(f"grant gone 7 60000 {now} {name}".encode())
        eventually(lambda: not client.exists(key))


@pytest.mark.parametrize("error", [KeyboardInterrupt, *BROKEN[1:]])
@pytest.mark.parametrize("wait", ["queue", "blpop"])
def test_interrupted_waiter_leaves_the_queue(
    name: str, error: type[BaseException], wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever interrupts a wait, the place is given up: no orphan in the queue."""
    for module in (drivers, locking):  # else a busy server may be told in the background
        monkeypatch.setattr(module, "TIDY_FOR", PATIENCE)
    registry = locks["default"].registry_for(wait)
    assert isinstance(registry, ReceivingRegistry)

    def interrupt_once_it_sleeps() -> None:
        # Not earlier: it logs a warning, and pytest's log file drops what is raised meanwhile.
        eventually(lambda: registry._leader)
        os.kill(os.getpid(), signal.SIGUSR1)

    with lock(name, timeout=20):
        with handling(signal.SIGUSR1, error):
            trigger = Background(interrupt_once_it_sleeps)
            with pytest.raises(error):
                lock(name, wait=wait).acquire(blocking_timeout=PATIENCE)
            trigger.outcome()
        # A heartbeat that was on its way may bring it back, and then has it removed.
        eventually(lambda: waiters(name) == 0)
    assert lock(name).acquire(blocking=False)


def test_wherever_a_waiter_is_interrupted_other_threads_can_wait(name: str) -> None:
    """No mutex stays locked, as that of a ``threading.Event`` does."""
    registry = locks["default"].registry_for("queue")

    def come_and_go(token: str) -> None:
        waiter = LocalWaiter(Request(name, token, 20.0, "{}"))
        registry.join(waiter)
        registry.leave(waiter)

    for at in itertools.count():
        interruption = Interruption(at, threading, receiving)
        with contextlib.suppress(Interrupted), interruption:
            come_and_go(f"token {at}")
        Background(partial(come_and_go, f"another {at}")).outcome()
        if not interruption.raised:
            break
    assert at > 5


def test_lock_of_another_program_excludes_and_is_followed(name: str, client: redis.Redis) -> None:
    """A lock set by ``SET key value NX PX`` excludes us, and its end is noticed in time."""
    assert client.set(f"lock:{name}", "somebody else", nx=True, px=60_000)
    waiting = Background(lambda: lock(name).acquire(blocking_timeout=10))
    eventually(lambda: waiters(name) == 1)
    holder = locks["default"].holder(name)
    assert (holder.fence, holder.host, holder.acquired_at) == (None, None, None)
    assert 50 < holder.ttl <= 60
    client.delete(f"lock:{name}")
    assert waiting.outcome() is True
    assert not client.set(f"lock:{name}", "somebody else", nx=True, px=60_000)


def test_listing_costs_the_held_locks_only(name: str, client: redis.Redis) -> None:
    """Listing never goes through the database: no KEYS, no SCAN, and no silent cap."""
    client.mset({f"page:{number}": "" for number in range(5000)})
    held = [lock(f"{name}:{number}", timeout=60) for number in range(1200)]
    for item in held:
        item.acquire()
    with counted(client) as counts:
        assert len(list(locks["default"].holders())) == 1200
    assert not {"keys", "scan", "randomkey"} & counts.keys()
    assert counts["evalsha"] == 7  # the index, and six pages of locks


# The waiting schemes beside each other on one lock.


def stand(name: str, wait: str, number: int, timeout: float = 20) -> Lock:
    """Return a handle that waits, as the one with this number, in a thread of its own."""
    handle = lock(name, timeout=timeout, wait=wait)
    handle.waiting = Background(handle.acquire)
    eventually(lambda: waiters(name) == number)
    return handle


def test_all_schemes_share_one_queue(name: str) -> None:
    """They are served in order of arrival, however they wait, with rising fences."""
    locks["default"].registry_for("poll").interval = 0.1
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


@pytest.mark.parametrize("wait", ["Queue", ("poll",)])
def test_an_unknown_scheme_is_refused_at_once(name: str, wait: Any, settings: Any) -> None:
    """The error names the value and what there is, before anything is sent."""
    with pytest.raises(
        ValueError, match="is not a notification mode: use 'queue', 'blpop' or 'poll', or None"
    ):
        lock(name, wait=wait)
    settings.LOCKS = {"default": {"LOCATION": "locks", "OPTIONS": {"WAIT": wait}}}
    with pytest.raises(InvalidLockBackend, match="'queue' or 'blpop' or 'poll'"):
        _ = locks["default"]
