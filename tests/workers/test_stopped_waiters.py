"""Waiters whose process is stopped or was killed: they delay the others by a moment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.backends.operator_settings import OTHER
from django_redis_lock.contrib.gauges import read_held
from django_redis_lock.protocol.heartbeats import BEAT_EVERY
from django_redis_lock.protocol.waiting import CLAIM
from django_redis_lock.support.arguments import WAITING_SCHEMES
from django_redis_lock.transport import packing
from example_project.embedded import EmbeddedServer
from tests.tools import Background, Child, eventually, waiters

pytestmark = pytest.mark.usefixtures("server")

CROWD = """
    from tests.tools import eventually, waiters
    names, schemes = sys.argv[1].split(), sys.argv[2].split()
    def take(name, wait):
        with lock(name, timeout=30, wait=wait) as held:
            say("holds", held.fence)
    before, threads = waiters(names[0]), []
    for number, wait in enumerate(schemes, 1):
        for name in names:
            threads.append(threading.Thread(target=take, args=(name, wait)))
            threads[-1].start()
        eventually(lambda: waiters(names[0]) == before + number)
    say("ready")
    for thread in threads:
        thread.join()
    say("done")
"""


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        yield client


@contextmanager
def crowd(names: Sequence[str], schemes: Sequence[str]) -> Iterator[Child]:
    """Waiters of a process of its own, which are in the queues already."""
    with Child(CROWD, " ".join(names), " ".join(schemes)) as child:
        assert child.hear() == "ready"
        try:
            yield child
        finally:
            child.go_on()


def take(name: str) -> Background:
    """Wait for a lock behind all present waiters; the outcome is the handle."""
    before = waiters(name)
    handle = lock(name, timeout=60)

    def acquire() -> Any:
        assert handle.acquire()
        return handle

    waiting = Background(acquire)
    eventually(lambda: waiters(name) == before + 1)
    return waiting


@pytest.mark.parametrize("wait", WAITING_SCHEMES)
def test_a_hundred_stopped_waiters_delay_a_caller_once(name: str, wait: str) -> None:
    """Their process does not claim the lock that it was handed, so all of them are skipped. One
    after another they would take longer than the test waits."""
    held = lock(name, timeout=60)
    held.acquire()
    with crowd([name], [wait] * 100) as child:
        healthy, next_one = take(name), take(name)
        child.stop()
        held.release()
        healthy.outcome().release()
        next_one.outcome().release()
        assert waiters(name) in {0, 100}  # those of a free lock are not shown
        child.go_on()
        fences = [int(child.hear().split()[1]) for _ in range(100)]
        assert fences == sorted(set(fences))
        assert child.hear() == "done"


def test_a_body_that_lets_no_other_thread_run_keeps_its_lock(
    name: str, client: redis.Redis
) -> None:
    """The claim is sent before the holder runs, whatever the holder does then."""
    held = lock(name, timeout=60)
    held.acquire()
    # A function of C that is called through PyDLL keeps the interpreter's lock.
    program = CROWD.replace(
        'say("holds", held.fence)',
        'import ctypes; os.write(1, b"holds\\n"); ctypes.PyDLL(None).usleep(3_000_000);'
        ' held.ensure_held(); say("held")',
    )
    with Child(program, name, "queue") as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(name) == 1)
        healthy = take(name)
        client.script_flush()
        held.release()
        assert child.hear() == "holds"
        assert child.hear() == "held"
        healthy.outcome().release()


def test_killed_waiters_are_gone(name: str) -> None:
    """That is so while another one waits, and while the holder goes on alone."""
    both = (name, f"{name}-alone")
    holders = [lock(one, timeout=60) for one in both]
    for held in holders:
        held.acquire()
    with crowd(both, WAITING_SCHEMES) as child:
        eventually(lambda: waiters(both[1]) == len(WAITING_SCHEMES))
        healthy = take(name)
        child.process.kill()
        eventually(lambda: [waiters(one) for one in both] == [1, 0])
        shown = [[waiter.pid for waiter in locks["default"].waiting(one, limit=1)] for one in both]
        assert shown == [[os.getpid()], []]
        assert read_held(locks["default"]).groups[OTHER]["waiting"] == 1
    for held in holders:
        held.release()
    healthy.outcome().release()


def test_numbers_are_the_same_in_lua_and_in_python() -> None:
    """The scripts count on waiters that look often enough, and claim in time."""
    source = packing.ACQUIRE.source
    numbers = {
        key: int(value) / 1000
        for key, value in re.findall(r"^ *local ([A-Z_]+) = (\d+)", source, re.MULTILINE)
    }
    assert numbers["CLAIM"] == CLAIM
    assert BEAT_EVERY < numbers["BEAT"] < CLAIM
