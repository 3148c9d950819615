"""Buyers over HTTP: each sends one order at a time, and the next when the last is answered.

A client of our own, on asyncio, and not wrk or Locust. A percentile of a histogram is not enough
here: we want every single wait, and also of those buyers who still wait when the time is up, for
they are the ones whom an unfair lock lets wait longest. They are waited for. And we want to know
who got how many orders.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Self

HOST = "127.0.0.1"
NO_ANSWER = 0


@dataclass(frozen=True)
class Answer:
    """One request: who sent it, what came, and when, by the monotonic clock."""

    buyer: int
    status: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long the buyer waited."""
        return self.ended - self.began


@dataclass
class Crowd:
    """Buyers with a connection each, that stays open."""

    port: int
    count: int
    answers: list[Answer] = field(default_factory=list)
    _connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(
        default_factory=list
    )

    async def __aenter__(self) -> Self:
        for _ in range(self.count):
            self._connections.append(await asyncio.open_connection(HOST, self.port))
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, writer in self._connections:
            writer.close()
        self._connections.clear()

    async def buy_until(self, end: float, paths: list[str]) -> None:
        """Let all buy, each one of the products by chance, until the monotonic clock says so."""
        await asyncio.gather(*(self._buy(buyer, end, paths) for buyer in range(self.count)))

    async def buy_once(self, path: str) -> None:
        """Let all buy once, at the same moment."""
        await asyncio.gather(*(self._send("POST", buyer, path) for buyer in range(self.count)))

    async def look_until(self, end: float, path: str, pause: float) -> None:
        """Let all look at a page now and then."""
        await asyncio.gather(
            *(self._look(looker, end, path, pause) for looker in range(self.count))
        )

    async def _buy(self, buyer: int, end: float, paths: list[str]) -> None:
        while time.monotonic() < end:
            if await self._send("POST", buyer, random.choice(paths)) == NO_ANSWER:
                return

    async def _look(self, looker: int, end: float, path: str, pause: float) -> None:
        while time.monotonic() < end:
            if await self._send("GET", looker, path) == NO_ANSWER:
                return
            await asyncio.sleep(pause)

    async def _send(self, method: str, buyer: int, path: str) -> int:
        reader, writer = self._connections[buyer]
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nX-Buyer: buyer {buyer}\r\n"
        began = time.monotonic()
        try:
            writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
            status = await _read(reader)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            status = NO_ANSWER
        self.answers.append(Answer(buyer, status, began, time.monotonic()))
        return status


async def _read(reader: asyncio.StreamReader) -> int:
    """Read one answer; return its status. Raises ``ValueError`` for what is no answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    await reader.readexactly(int(headers["content-length"]))
    return int(first.split(" ")[1])
