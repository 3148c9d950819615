"""Waiters whose process does not run: they delay the others by a moment, however many they are."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_lock import lock
from django_redis_lock.protocol.waiting import CLAIM, POLL_EVERY
from django_redis_lock.support.arguments import WAITING_SCHEMES
from django_redis_lock.transport import packing
from tests.tools import Background, Child, eventually, waiters

pytestmark = pytest.mark.usefixtures("server")

DELAY = 1.5
"""Seconds by which a stopped process delays a healthy caller at the most, and what a busy machine
adds to them below."""
SLACK = 1.0

CROWD = """
    name, wait, number, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    def take():
        with lock(name, timeout=timeout, wait=wait) as held:
            say("holds", held.fence)
    threads = [threading.Thread(target=take) for _ in range(number)]
    for thread in threads:
        thread.start()
    say("ready")
    for thread in threads:
        thread.join()
    say("done")
"""


@contextmanager
def crowd(name: str, wait: str, number: int, timeout: float = 30) -> Iterator[Child]:
    """Some waiters in a process of their own, which are in the queue already."""
    before = waiters(name)
    with Child(CROWD, name, wait, str(number), str(timeout)) as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(name) == before + number)
        try:
            yield child
        finally:
            child.go_on()


def take(name: str, wait: str = "queue") -> Background:
    """Wait for a lock behind all present waiters; the outcome is the handle."""
    before = waiters(name)
    handle = lock(name, timeout=20, wait=wait)

    def acquire() -> Any:
        assert handle.acquire(blocking_timeout=15)
        return handle

    waiting = Background(acquire)
    eventually(lambda: waiters(name) == before + 1)
    return waiting


@pytest.mark.parametrize("wait", WAITING_SCHEMES)
@pytest.mark.parametrize("timeout", [0.5, 30])
def test_a_hundred_stopped_waiters_delay_a_caller_once(
    name: str, wait: str, timeout: float
) -> None:
    """Their process does not claim the lock that it was handed, so all of them are skipped."""
    held = lock(name, timeout=60)
    held.acquire()
    with crowd(name, wait, 100, timeout) as child:
        healthy, next_one = take(name), take(name)
        child.stop()
        began = time.monotonic()
        held.release()
        first = healthy.outcome()
        assert healthy.ended_at - began < DELAY + SLACK
        # From then on they are known to be silent, and delay nobody.
        released_at = time.monotonic()
        first.release()
        next_one.outcome().release()
        assert next_one.ended_at - released_at < SLACK
        assert waiters(name) in {0, 100}  # of a lock that nobody holds none are told
        # They kept their places, and go on when they are back.
        child.go_on()
        back_at = time.monotonic()
        fences = [int(child.hear().split()[1]) for _ in range(100)]
        assert fences == sorted(set(fences))
        assert child.hear() == "done"
        assert time.monotonic() - back_at < 10  # and not 100 looks one after another


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
    with Child(program, name, "queue", "1", "30") as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(name) == 1)
        healthy = take(name)
        client.script_flush()
        held.release()
        assert child.hear() == "holds"
        assert child.hear() == "held"
        healthy.outcome().release()


def test_a_blocked_event_loop_delays_a_caller_once(name: str, tmp_path: Path) -> None:
    """Tasks whose loop does not run are skipped as well."""
    held = lock(name, timeout=60)
    held.acquire()
    program = """
        import asyncio
        async def take():
            async with lock(sys.argv[1], timeout=30):
                say("holds")
        async def main():
            tasks = [asyncio.create_task(take()) for _ in range(20)]
            await asyncio.sleep(0)
            say("ready")
            while not block.exists():
                await asyncio.sleep(0.01)
            say("blocked")
            hear()
            await asyncio.gather(*tasks)
        import pathlib
        block = pathlib.Path(sys.argv[2])
        asyncio.run(main())
    """
    block = tmp_path / "block"
    with Child(program, name, str(block)) as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(name) == 20)
        healthy = take(name)
        block.touch()
        assert child.hear() == "blocked"
        began = time.monotonic()
        held.release()
        healthy.outcome().release()
        assert healthy.ended_at - began < DELAY + SLACK
        child.say()
        assert [child.hear() for _ in range(20)] == ["holds"] * 20


def test_numbers_are_the_same_in_lua_and_in_python() -> None:
    """The scripts count on waiters that look often enough, and claim in time."""
    source = packing.ACQUIRE.source
    numbers = {
        key: int(value) / 1000
        for key, value in re.findall(r"^ *local ([A-Z_]+) = (\d+)", source, re.MULTILINE)
    }
    assert numbers["CLAIM"] == CLAIM
    assert POLL_EVERY < numbers["SEEN"] < CLAIM < DELAY
    assert numbers["CLAIM_UNTOLD"] > 2 * POLL_EVERY


def test_aliases_that_share_a_server_pop_their_own_grants(name: str, settings: Any) -> None:
    """Two backends of one process with WAIT "blpop" and one prefix do not read each other's."""
    entry = {"LOCATION": "locks", "OPTIONS": {"WAIT": "blpop"}}
    settings.LOCKS = {"default": entry, "other": {**entry, "TIMEOUT": 5}}
    both = [(name, "default"), (f"{name}-2", "other")]
    for _ in range(5):
        holders = [lock(one, timeout=60, using=using) for one, using in both]
        for held in holders:
            held.acquire()
        queue = []
        for one, using in both:
            handle = lock(one, timeout=60, using=using)
            queue.append((handle, Background(handle.acquire)))
            eventually(lambda one=one, using=using: waiters(one, using) == 1)
        for held in holders:
            began = time.monotonic()
            held.release()
        for handle, waiting in queue:
            assert waiting.outcome() is True
            assert waiting.ended_at - began < POLL_EVERY / 2
            handle.release()
