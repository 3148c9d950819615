"""Forks at a bad moment: during a wait, and beside an event loop."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import pytest

from django_redis_lock import lock, locks
from tests.tools import PATIENCE, Child, eventually

pytestmark = [
    pytest.mark.usefixtures("server"),
    # A process with threads forks here on purpose, as web servers and Celery's pool do.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

FORK_IN_A_WAIT = """
    import signal
    name, wait = sys.argv[1:]
    signal.signal(signal.SIGUSR1, lambda *ignored: os.fork())
    parent, mine = os.getpid(), lock(name, timeout=20, wait=wait)
    say("ready")
    try:
        mine.acquire()
    except LockError as error:
        say("child", type(error).__name__, error.name, "begun by the parent" in str(error))
    else:
        say("parent" if os.getpid() == parent else "child", mine.fence)
        mine.release()
        sys.exit()
    with lock(name + "!", timeout=20) as other:  # the child goes on as a process of its own
        say("child has another")
    say("child waits", mine.acquire(), mine.fence)
    os._exit(0)
"""


@pytest.mark.parametrize("wait", ["queue", "blpop"])
def test_fork_in_the_middle_of_a_wait(name: str, wait: str) -> None:
    """The request belongs to the parent: the child gets an error, and does not withdraw it."""
    held = lock(name, timeout=60)
    held.acquire()
    with Child(FORK_IN_A_WAIT, name, wait) as waiter:
        assert waiter.hear() == "ready"
        eventually(lambda: locks["default"].holder(name).waiters == 1)
        os.kill(waiter.pid, signal.SIGUSR1)
        assert waiter.hear() == f"child LockError {name} True"
        assert waiter.hear() == "child has another"
        eventually(lambda: locks["default"].holder(name).waiters == 2)
        parent, child = locks["default"].waiting(name)
        assert parent.pid == waiter.pid != child.pid
        held.release()
        first = waiter.hear().split()
        assert first[0] == "parent"
        *second, fence = waiter.hear().split()
        assert second == ["child", "waits", "True"]
        assert int(fence) > int(first[1])


ENDED: list[int] = []


def collect() -> list[int]:
    """Collect garbage; return the processes in which a wait ended, and this one."""
    gc.collect()
    return [*ENDED, os.getpid()]


def test_fork_beside_an_event_loop(name: str) -> None:
    """The child's garbage collector leaves the parent's connection and waiters alone."""

    async def wait(given: asyncio.Event) -> None:
        try:
            await lock(name, timeout=60).aacquire()
            given.set()
        finally:
            ENDED.append(os.getpid())

    async def main() -> None:
        ENDED.clear()
        given = asyncio.Event()
        async with lock(name, timeout=60):
            asyncio.create_task(wait(given))  # noqa: RUF006 - that it waits is to keep it alive
            while (await locks["default"].aholder(name)).waiters == 0:
                await asyncio.sleep(0.001)
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                loop = asyncio.get_running_loop()
                for _ in range(3):
                    (child,) = await loop.run_in_executor(pool, collect)
                    assert child != os.getpid()
                    async with asyncio.timeout(PATIENCE):
                        assert await lock(name).alocked()
                assert (await locks["default"].aholder(name)).waiters == 1
        async with asyncio.timeout(PATIENCE):
            await given.wait()
        await locks["default"].aforce_release(name)

    asyncio.run(main())
