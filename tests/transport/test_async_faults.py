"""What asyncio tasks go through on servers that hang, in loops that end, beside busy executors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from tests.tools import PATIENCE, connections, eventually


@pytest.fixture
def frozen(own_server: EmbeddedServer, settings: Any) -> Iterator[Callable[[], None]]:
    """Return what freezes the server of the default backend, whose socket timeout is a minute."""
    settings.LOCKS = {
        "default": {"LOCATION": f"{own_server.url()}?socket_timeout=60&socket_connect_timeout=60"},
        "direct": {"LOCATION": own_server.url()},
    }
    yield own_server.pause
    own_server.resume()


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not yet connected"])
def test_a_cancelled_acquisition_ends_soon_on_a_server_that_hangs(
    name: str, own_server: EmbeddedServer, frozen: Callable[[], None], connected: bool
) -> None:
    """A timeout of asyncio is kept, and what the server does later leaves no lock behind."""

    async def main() -> None:
        if connected:
            assert not await lock(name).alocked()
        frozen()
        handle = lock(name, timeout=60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await handle.aacquire()
        own_server.resume()
        assert await handle.aacquire(blocking_timeout=20)
        await handle.arelease()

    asyncio.run(main())
    eventually(lambda: not lock(name, using="direct").locked())


@pytest.fixture
def busy() -> Iterator[Callable[[], None]]:
    """Return what keeps the default executor of the running loop busy."""
    free = threading.Event()
    executors: list[ThreadPoolExecutor] = []

    def occupy() -> None:
        loop = asyncio.get_running_loop()
        executors.append(ThreadPoolExecutor(1))
        loop.set_default_executor(executors[0])
        loop.run_in_executor(None, free.wait, 60)

    yield occupy
    free.set()
    for executor in executors:
        executor.shutdown()


def run_and_leave(main: Any) -> None:
    """Run a coroutine in a loop whose executor is not waited for."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        try:
            loop.run_until_complete(main)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop._default_executor = None


def test_nothing_waits_for_the_executor_of_the_loop(
    name: str, server: EmbeddedServer, settings: Any, busy: Callable[[], None]
) -> None:
    """Host names are looked up, locks taken, shown and given up, while it has no thread free."""
    settings.LOCKS = {"default": {"LOCATION": f"redis://localhost:{server.port}"}}

    async def main() -> None:
        busy()
        async with asyncio.timeout(PATIENCE), lock(name, timeout=20) as held:
            assert held.fence
            await held.aextend(5)
            await held.aensure_held()
            assert [item.name async for item in locks["default"].aholders()] == [name]
            assert not await lock(name).aacquire(blocking=False)

    run_and_leave(main())


def test_loops_that_are_closed_as_they_are_leave_no_connection(
    name: str, server: EmbeddedServer, client: redis.Redis
) -> None:
    """Without ``shutdown_asyncgens()``: the next loop closes what the last one had open."""
    before = connections(client)
    loops: list[weakref.ref[Any]] = []

    async def main() -> None:
        async with lock(name, timeout=20):
            pass

    for _ in range(50):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop

    def alive() -> int:
        gc.collect()
        return sum(item() is not None for item in loops)

    eventually(lambda: alive() <= 1)  # a thread that wakes a loop has it for a moment
    eventually(lambda: len(connections(client) - before) <= 2)  # the last, and one for blocking
    asyncio.run(main())
