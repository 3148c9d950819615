"""Asynchronous views on a real ASGI server, asked over real HTTP by many clients at once."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_lock import lock, locks
from example_project.embedded import EmbeddedServer
from example_project.keeper import Keeper
from tests.apps.asgi_app import CLIENT_NAME, FILES, allow_many_files
from tests.tools import ROOT, waiters

pytestmark = pytest.mark.timeout(300)

CLIENTS = 1000
PATIENCE = 100.0
"""Seconds that a thousand requests may take on a machine with a lot to do."""


class Site:
    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self.client_name = CLIENT_NAME.format(pid=pid)

    async def open(self, path: str, length: int = 0) -> Client:
        """Send a request but for its body, and leave it open."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        return Client(reader, writer)

    async def open_many(self, path: str, count: int) -> list[Client]:
        return list(await asyncio.gather(*[self.open(path) for _ in range(count)]))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def answer(self) -> tuple[int, Any]:
        head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
        self._writer.close()
        return int(head.split()[1]), json.loads(body)

    async def send(self, body: bytes) -> None:
        self._writer.write(body)
        await self._writer.drain()

    async def go_away(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def happens(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.05)


async def answers(clients: list[Client]) -> list[tuple[int, Any]]:
    async with asyncio.timeout(PATIENCE):
        return list(await asyncio.gather(*[client.answer() for client in clients]))


@contextmanager
def running(log: Path) -> Iterator[Site]:
    """Start a server of its own process, which logs nothing where nothing goes wrong."""
    allow_many_files()
    keeper = Keeper()
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=FILES) as listener, log.open("wb") as f:
            process = keeper.spawn(
                sys.executable,
                *("-m", "tests.apps.asgi_app", str(listener.fileno())),
                cwd=ROOT,
                env={**os.environ, "PYTHONDEVMODE": "", "PYTHONASYNCIODEBUG": ""},
                stdout=f,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
            )
            yield Site(listener.getsockname()[1], process.pid)
        keeper.stop(process, grace=10)
    finally:
        keeper.close()
    assert log.read_text() == ""


@pytest.fixture(scope="module")
def common_site(
    session_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("asgi") / "server.log") as site:
        yield site


@pytest.fixture
def site(common_site: Site, server: EmbeddedServer) -> Site:
    return common_site


@pytest.fixture
def fresh_site(server: EmbeddedServer, tmp_path: Path) -> Iterator[Site]:
    with running(tmp_path / "server.log") as site:
        yield site


@pytest.mark.timed
def test_a_thousand_requests_wait_with_one_connection(
    fresh_site: Site, client: redis.Redis, name: str
) -> None:
    site = fresh_site

    def opened() -> list[int]:
        """Return how many of its connections send calls, and how many listen."""
        kinds = [client.client_list(_type=kind) for kind in ("normal", "pubsub")]
        return [sum(one["name"] == site.client_name for one in kind) for kind in kinds]

    async def main() -> None:
        held = lock(f"asgi:{name}", timeout=600)
        held.acquire()
        clients = await site.open_many(f"/enter/{name}/", CLIENTS)
        await happens(lambda: waiters(held.name) == CLIENTS)
        queue = [waiter.token_id for waiter in locks["default"].waiting(held.name)]
        await happens(lambda: opened() in ([1, 1], [2, 1]))
        held.release()
        answered = await answers(clients)
        assert {status for status, _ in answered} == {200}
        served = sorted((told["fence"], told["token_id"]) for _, told in answered)
        assert [token_id for _, token_id in served] == queue
        # The renewal has a connection of its own, which stays open. It needs one where a waiter
        # found its grant by polling before it read the message: it gives back what seems lost.
        await happens(lambda: opened() in ([1, 1], [2, 1]))
        await happens(lambda: locks["default"].holder(held.name) is None)

    asyncio.run(main())


def test_a_client_that_goes_away_gives_up_its_place(site: Site, name: str) -> None:
    async def main() -> None:
        held = lock(f"asgi:{name}", timeout=600)
        held.acquire()
        clients = await site.open_many(f"/enter/{name}/", 60)
        await happens(lambda: waiters(held.name) == 60)
        for gone in clients[::3]:
            await gone.go_away()
        await happens(lambda: waiters(held.name) == 40)
        held.release()
        staying = [each for number, each in enumerate(clients) if number % 3]
        answered = await answers(staying)
        assert [status for status, _ in answered] == [200] * 40
        await happens(lambda: locks["default"].holder(held.name) is None)

    asyncio.run(main())


def test_a_client_that_sends_slowly_holds_no_lock(site: Site, name: str) -> None:
    """Django calls a view, asynchronous or not, once the whole body has arrived."""

    async def main() -> None:
        addresses = [f"/enter/{name}/", f"/enter-blocking/{name}/"]
        slow = [await site.open(address, length=4) for address in addresses]
        gone = [await site.open(address, length=4) for address in addresses]
        for client in slow + gone:
            await client.send(b"ab")
        others = [await site.open(address) for address in addresses]
        assert [status for status, _ in await answers(others)] == [200, 200]
        assert locks["default"].holder(f"asgi:{name}") is None
        for client in gone:
            await client.go_away()
        for client in slow:
            await client.send(b"cd")
        assert [status for status, _ in await answers(slow)] == [200, 200]

    asyncio.run(main())


def test_blocking_views_in_threads(site: Site, name: str) -> None:
    """Django runs each in a thread of its own, so they may wait for each other."""

    async def main() -> None:
        held = lock(f"asgi:{name}", timeout=600)
        held.acquire()
        blocking = await site.open_many(f"/enter-blocking/{name}/", 20)
        asynchronous = await site.open_many(f"/enter/{name}/", 20)
        await happens(lambda: waiters(held.name) == 40)
        held.release()
        answered = await answers([*blocking, *asynchronous])
        assert [status for status, _ in answered] == [200] * 40
        assert len({told["fence"] for _, told in answered}) == 40

    asyncio.run(main())
