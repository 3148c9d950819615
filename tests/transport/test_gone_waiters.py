"""Waiters whose process was killed or is stopped: they don't show, and lose their places."""

from __future__ import annotations

import os
import time

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.contrib.gauges import read_held
from django_redis_lock.support.arguments import WAITING_SCHEMES
from tests.tools import Background, Child, eventually, waiters

pytestmark = pytest.mark.usefixtures("server")

SHOWN = 3.0
"""Seconds for which a waiter that was killed shows, and after which it has lost its place; and
what a busy machine adds."""
DROPPED = 10.0
SLACK = 4.0

CROWD = """
    from tests.tools import eventually, waiters
    names, schemes = sys.argv[1].split(), sys.argv[2].split()
    def take(name, wait):
        with lock(name, timeout=30, wait=wait) as held:
            say(wait, held.fence)
    before, threads = waiters(names[0]), []
    for number, wait in enumerate(schemes, 1):
        for name in names:
            threads.append(threading.Thread(target=take, args=(name, wait)))
            threads[-1].start()
        eventually(lambda: waiters(names[0]) == before + number)
    say("ready")
    for thread in threads:
        thread.join()
"""


def take(name: str) -> Background:
    """Wait behind all present waiters, and release; the outcome is the fence."""
    before = waiters(name)

    def wait() -> int:
        with lock(name, timeout=60) as held:
            return held.fence

    waiting = Background(wait)
    eventually(lambda: waiters(name) == before + 1)
    return waiting


def test_killed_waiters_are_gone(name: str, client: redis.Redis) -> None:
    """That is so while another one waits, and while the holder goes on alone."""
    both = (name, f"{name}-alone")
    holders = [lock(one, timeout=60) for one in both]
    for held in holders:
        held.acquire()
    with Child(CROWD, " ".join(both), " ".join(WAITING_SCHEMES)) as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(both[1]) == len(WAITING_SCHEMES))
        joined_at = time.monotonic()
        healthy = take(name)
        child.process.kill()
        killed_at = time.monotonic()
        eventually(lambda: [waiters(one) for one in both] == [1, 0])
        shown = [[waiter.pid for waiter in locks["default"].waiting(one, limit=1)] for one in both]
        assert shown == [[os.getpid()], []]
        figures = read_held(locks["default"]).groups[OTHER]
        assert figures.waiting == 1
        assert figures.oldest_wait < time.monotonic() - joined_at
        assert time.monotonic() - killed_at < SHOWN + SLACK
        eventually(lambda: [client.llen(f"lock-queue:{one}") for one in both] == [1, 0])
        assert time.monotonic() - killed_at < DROPPED + SLACK
    for held in holders:
        held.release()
    healthy.outcome()


def test_who_was_stopped_for_long_comes_back_to_its_place(name: str, client: redis.Redis) -> None:
    """It comes before those who joined after it, though it had lost its place meanwhile."""
    held = lock(name, timeout=60)
    held.acquire()
    first = take(name)
    with Child(CROWD, name, " ".join(WAITING_SCHEMES)) as child:
        assert child.hear() == "ready"
        child.stop()
        eventually(lambda: client.llen(f"lock-queue:{name}") == waiters(name) == 1)
        last = take(name)
        child.go_on()
        eventually(lambda: waiters(name) == 5)
        held.release()
        fences = [int(child.hear().split()[1]) for _ in WAITING_SCHEMES]
        assert first.outcome() < min(fences) < max(fences) < last.outcome()
        assert child.end() == 0
