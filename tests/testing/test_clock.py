"""A clock that a test moves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import django_redis_lock
from django_redis_lock import lock, lock_many, locks
from django_redis_lock.exceptions import LockError, LockLost
from django_redis_lock.primitives.lock import Lock
from django_redis_lock.support.clock import monotonic
from django_redis_lock.testing import LockRecorder, LockSpace, advance_clock, held_by_another
from tests.tools import Background, eventually, waiters

PACKAGE = Path(django_redis_lock.__file__).parent


@pytest.fixture(autouse=True)
def space() -> Iterator[None]:
    with LockSpace("memory"):
        yield


def test_a_lease_ends_when_its_time_has_passed() -> None:
    held = lock("a", timeout=60)
    held.acquire()
    advance_clock(40)
    assert not held.lost
    assert 19 < held.remaining <= 20
    assert locks["default"].holder("a").ttl <= 20
    advance_clock(20)
    assert (held.lost, held.remaining) == (True, 0.0)
    assert locks["default"].holder("a") is None
    with pytest.raises(LockLost):
        held.release()


def test_a_lock_that_never_expires_stays() -> None:
    with lock("a", timeout=None):
        advance_clock(10**6)


@pytest.mark.parametrize("seconds", [0.2, 0.5, 3600.0])
def test_a_renewed_lease_has_been_renewed(seconds: float) -> None:
    with LockRecorder() as recorded:
        with lock("a", timeout=0.5, auto_renew=True) as held, lock("b"):
            advance_clock(seconds)
            held.ensure_held()
            assert 0 < held.remaining <= 0.5
            lease = held._lease
            end = lease.deadline
            eventually(lambda: lease.deadline > end)  # the renewal goes on
        with held_by_another("a"):
            advance_clock(seconds)
            assert not lock("a").acquire(blocking=False)
    assert recorded.lost == []


def test_the_leases_of_several_locks_end_together() -> None:
    held = lock_many(["a", "b"], timeout=5)
    held.acquire()
    advance_clock(5)
    assert held.lost


def test_a_renewed_lease_ends_with_max_hold() -> None:
    held = Lock(lambda: locks["default"], "a", max_hold=100)
    held.acquire()
    advance_clock(70)
    assert not held.lost
    advance_clock(70)
    assert held.lost
    assert lock("a").acquire(blocking=False)


def test_a_renewed_lease_of_a_handle_that_is_gone_ends() -> None:
    lock("a").acquire()
    advance_clock(31)
    assert lock("a").acquire(blocking=False)


def test_a_wait_ends_when_its_time_has_passed() -> None:
    with lock("a"):
        waiter = Background(lock("a", blocking_timeout=3000).acquire)
        eventually(lambda: waiters("a"))
        advance_clock(2000)
        assert waiters("a") == 1
        advance_clock(1000)
        assert waiter.outcome() is False


def test_a_waiter_gets_the_lock_whose_lease_has_ended() -> None:
    lock("a", timeout=60).acquire()
    waiting = [Background(lock("a", timeout=60).acquire) for _ in range(2)]
    eventually(lambda: waiters("a") == 2)
    advance_clock(60)
    eventually(lambda: waiters("a") == 1)
    advance_clock(60)
    assert [waiter.outcome() for waiter in waiting] == [True, True]


def test_asyncio_tasks_follow_the_clock() -> None:
    async def work() -> None:
        held = lock("a", timeout=60)
        await held.aacquire()
        waiting = asyncio.create_task(lock("a", blocking_timeout=100).aacquire())
        late = asyncio.create_task(lock("a", blocking_timeout=50).aacquire())
        while not (holder := await locks["default"].aholder("a")) or holder.waiters < 2:
            await asyncio.sleep(0)
        advance_clock(60)
        assert (await waiting, await late) == (True, False)
        assert held.lost

    asyncio.run(work())


def test_a_clock_of_a_server_is_not_moved(server: Any) -> None:
    with LockSpace("settings"), lock("a") as held:
        before = held.remaining
        with pytest.raises(LockError, match="on a server, whose clock can't be moved"):
            advance_clock(5)
        assert held.remaining > before - 5


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True])
def test_the_clock_only_goes_forward(seconds: float) -> None:
    before = monotonic()
    with pytest.raises(ValueError, match="goes forward"):
        advance_clock(seconds)
    assert monotonic() < before + 1


def test_all_that_concerns_leases_reads_the_one_clock() -> None:
    """A module with a clock of its own would not follow a test that moves it."""
    parts = ("protocol", "primitives", "backends", "transport", "support")
    others = [
        path.relative_to(PACKAGE).as_posix()
        for part in parts
        for path in (PACKAGE / part).rglob("*.py")
        if re.search(r"import.* monotonic$|time\.monotonic\(", path.read_text(), re.MULTILINE)
        and "from django_redis_lock.support.clock import monotonic" not in path.read_text()
    ]
    assert others == ["support/clock.py"]
