"""Waiters whose process does not run: they delay the others by a moment, however many they are."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from django_redis_lock.protocol.conversation import withdrawal
from django_redis_lock.protocol.lease import Request
from django_redis_lock.protocol.waiting import CLAIM, LOOK_EVERY, WAITING_SCHEMES
from django_redis_lock.transport import scripts
from tests.settings import server_url
from tests.tools import Background, Child, connections, eventually, handling, waiters

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


def test_processes_of_a_host_that_vanished_delay_a_caller_once(name: str) -> None:
    """Processes that were not heard of lately are not tried one after another."""
    held = lock(name, timeout=60)
    held.acquire()
    with ExitStack() as stack:
        children = [stack.enter_context(crowd(name, "queue", 3)) for _ in range(4)]
        healthy = take(name)
        for child in children:
            child.stop()
        began = time.monotonic()
        held.release()
        healthy.outcome().release()
        assert healthy.ended_at - began < DELAY + SLACK


def test_a_waiter_that_wakes_late_waits_on_in_its_place(name: str) -> None:
    """It asks, learns that its grant is gone, and keeps its place before those who joined later."""
    held = lock(name, timeout=60)
    held.acquire()
    with crowd(name, "queue", 1) as child:
        healthy, later = take(name), take(name)
        child.stop()
        held.release()
        handle = healthy.outcome()
        assert waiters(name) == 2  # the one that was passed over, and the last
        child.go_on()
        # It is heard again by its next look, which is then the latest.
        eventually(lambda: _silent(name) == 0)
        handle.ensure_held()
        first = handle.fence
        handle.release()
        holds, fence = child.hear().split()
        assert (holds, int(fence) > first) == ("holds", True)
        last = later.outcome()
        assert last.fence > int(fence)
        last.release()


def _silent(name: str) -> int:
    client = redis.Redis.from_url(server_url(0))
    with client:
        return int(client.zcount("lock-heard", "-inf", "(0"))


def test_a_claimed_lock_is_not_taken_back(name: str) -> None:
    """A holder that claimed the lock and then stops keeps it for its lease."""
    held = lock(name, timeout=60)
    held.acquire()
    program = CROWD.replace('say("holds", held.fence)', 'say("holds"); hear()')
    with Child(program, name, "queue", "1", "30") as child:
        assert child.hear() == "ready"
        eventually(lambda: waiters(name) == 1)
        held.release()
        assert child.hear() == "holds"
        eventually(lambda: b'"unclaimed"' not in (_value(name) or b""))
        child.stop()
        assert not lock(name).acquire(blocking_timeout=2 * CLAIM)
        child.go_on()


def _value(name: str) -> bytes | None:
    with redis.Redis.from_url(server_url(0)) as client:
        value: bytes | None = client.get(f"lock:{name}")
        return value


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


def test_lock_many_takes_what_a_stopped_process_does_not_claim(name: str) -> None:
    """Taking several locks without waiting finds that a grant is overdue, as taking one does."""
    from django_redis_lock import lock_many

    held = lock(name, timeout=60)
    held.acquire()
    with crowd(name, "queue", 2) as child:
        child.stop()
        held.release()
        group = lock_many([name, f"{name}-2"], timeout=10, blocking=False)
        eventually(group.acquire)
        group.release()


def test_a_grant_without_a_waiter_is_given_back_at_once(name: str, client: redis.Redis) -> None:
    """An acquisition that reached the server after its caller had left strands no lock."""
    held = lock(name, timeout=60)
    held.acquire()
    hub = locks["default"].hub
    hub.listen()
    request = Request(name, "a" * 32, 30.0, '{"host":"gone"}')
    client.rpush(f"lock-queue:{name}", request.entry(hub.channel))
    behind = take(name)  # and reads for its process
    began = time.monotonic()
    held.release()
    behind.outcome().release()
    assert behind.ended_at - began < CLAIM


def test_a_claimed_lock_is_not_given_back(name: str) -> None:
    """A grant whose message comes after its waiter has found it by looking releases nothing."""
    held = lock(name, timeout=60)
    held.acquire()
    call = withdrawal(locks["default"].hub, Request(name, held._lease.token, 60.0, "{}"))
    call.unclaimed = True
    assert locks["default"].call(call) == 0
    held.ensure_held()
    held.release()


def test_waiter_of_a_closed_loop_is_passed_over(name: str) -> None:
    """A task that was never cancelled nor finished is not given the lock."""
    held = lock(name, timeout=60)
    held.acquire()
    loop = asyncio.new_event_loop()
    task = loop.create_task(lock(name, timeout=30).aacquire())
    while waiters(name) == 0:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    healthy = take(name)
    began = time.monotonic()
    held.release()
    healthy.outcome().release()
    assert healthy.ended_at - began < CLAIM
    task._log_destroy_pending = False


def test_waiters_are_heard_though_idle(name: str, client: redis.Redis) -> None:
    """Those who wait look in once in a while, and what is noted of that goes by itself."""
    with lock(name, timeout=60):
        waiting = take(name)
        heard = eventually(lambda: client.zrange("lock-heard", 0, -1, withscores=True))
        assert [channel for channel, _ in heard] == [locks["default"].hub.channel]
        assert 0 < client.pttl("lock-heard") <= 120_000
    waiting.outcome().release()


def test_numbers_are_the_same_in_lua_and_in_python() -> None:
    """The scripts count on waiters that look often enough, and claim in time."""
    source = scripts.ACQUIRE.source
    numbers = {
        key: int(value) / 1000
        for key, value in re.findall(r"^ *local ([A-Z_]+) = (\d+)", source, re.MULTILINE)
    }
    assert numbers["CLAIM"] == CLAIM
    assert LOOK_EVERY < numbers["HEARD"] < CLAIM < DELAY
    assert numbers["CLAIM_UNTOLD"] > 2 * LOOK_EVERY


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
            assert waiting.ended_at - began < LOOK_EVERY / 2
            handle.release()


def test_handler_of_a_signal_may_wait_while_its_thread_subscribes(name: str) -> None:
    """What it interrupts holds nothing that it needs."""
    hub = locks["default"].hub
    others = lock(f"{name}-2", timeout=60)
    others.acquire()
    connect, taken = hub._connect, []

    def interrupted_connect() -> Any:
        hub._connect = connect
        os.kill(os.getpid(), signal.SIGUSR1)
        return connect()

    def handler(signum: int, frame: object) -> None:
        threading.Timer(0.1, others.release).start()
        taken.append(lock(f"{name}-2", timeout=60).acquire(blocking_timeout=10))

    hub._connect = interrupted_connect
    with handling(signal.SIGUSR1, handler), lock(name, timeout=60):
        assert lock(name).acquire(blocking_timeout=0.3) is False
    assert taken == [True]


def test_reset_with_waiting_tasks_leaves_nothing_behind(name: str, client: redis.Redis) -> None:
    """Those who wait over a reset are served; the last takes thread and connection along."""

    def listening() -> list[threading.Thread]:
        return [item for item in threading.enumerate() if item.name.endswith("-listener")]

    async def wait() -> None:
        async with lock(name, timeout=60):
            pass

    async def main() -> None:
        held = lock(name, timeout=60)
        await held.aacquire()
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        while waiters(name) < 3:
            await asyncio.sleep(0.01)
        locks.reset()
        while not connections(client, "pubsub"):
            await asyncio.sleep(0.01)
        await held.arelease()
        await asyncio.gather(*tasks)

    threads = len(listening())
    asyncio.run(main())
    eventually(lambda: len(listening()) == threads)
    eventually(lambda: not connections(client, "pubsub"))


async def _with_a_busy_executor(name: str, wait: str) -> float:
    loop = asyncio.get_running_loop()
    ended = threading.Event()
    for _ in range(64):
        loop.run_in_executor(None, ended.wait)
    try:
        async with lock(name, timeout=60):
            began = time.monotonic()
            assert not await lock(name, wait=wait).aacquire(blocking_timeout=0.2)
            return time.monotonic() - began
    finally:
        ended.set()


@pytest.mark.parametrize("wait", WAITING_SCHEMES)
def test_a_task_waits_without_the_executor_of_its_loop(name: str, wait: str) -> None:
    """However busy that is, a wait begins at once, and ends in time."""
    assert asyncio.run(_with_a_busy_executor(name, wait)) < DELAY


def test_a_process_that_goes_on_joining_is_heard(name: str) -> None:
    """Each request of a process counts as a sign of life for those that waited before."""
    held = lock(name, timeout=60)
    held.acquire()
    with crowd(name, "queue", 1) as child:
        first = take(name)
        eventually(lambda: _heard(locks["default"].hub.channel))
        child.stop()
        held.release()
        second = take(name)
        assert _heard(locks["default"].hub.channel) > 0
        handle = first.outcome()
        handle.release()
        second.outcome().release()
        assert first.ended_at < second.ended_at


def test_a_process_that_looks_late_is_heard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that takes a lock back is a sign of life of its own process, however late it is."""
    monkeypatch.setattr("django_redis_lock.protocol.waiting.LOOK_EVERY", 30.0)
    held = lock(name, timeout=60)
    held.acquire()
    with crowd(name, "queue", 1) as child:
        first = take(name)
        child.stop()
        held.release()
        second = take(name)  # is the one that looks, when the time to claim the lock is over
        first.outcome().release()
        second.outcome().release()
        assert first.ended_at < second.ended_at


def test_a_process_that_takes_a_free_lock_is_heard(name: str, client: redis.Redis) -> None:
    """Back again, its waiters hand the lock to each other, and don't each wait for a look."""
    client.set(f"lock:{name}", "another 1 {}", px=60_000)
    first, second = take(name), take(name)
    channel = locks["default"].hub.channel
    with client.pipeline() as pipeline:
        pipeline.zadd("lock-heard", {channel: -time.time_ns() // 1_000_000})
        pipeline.delete(f"lock:{name}")
        pipeline.execute()
    held = first.outcome()
    assert _heard(channel) > 0
    held.release()
    second.outcome().release()


def test_waiters_of_a_silent_process_are_forgotten_after_a_minute(
    name: str, client: redis.Redis
) -> None:
    """They lose their places, however long the queue of them is."""
    held = lock(name, timeout=60)
    held.acquire()
    queue = [f"lock-grant:gone-1 {number:032x} 30000 {{}}" for number in range(250)]
    client.rpush(f"lock-queue:{name}", *queue)
    client.zadd("lock-heard", {"lock-grant:gone-1": 61_000 - time.time_ns() // 1_000_000})
    healthy = take(name)
    held.release()
    first = healthy.outcome()
    assert not client.exists(f"lock-queue:{name}")
    first.release()


def _heard(channel: str) -> float:
    """Return when a process was last heard by the server's clock; below zero if it is silent."""
    with redis.Redis.from_url(server_url(0)) as client:
        return float(client.zscore("lock-heard", channel) or 0)
