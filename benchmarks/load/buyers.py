"""Buyers over HTTP: each sends one order at a time, and the next once the last is answered.

This is not wrk or Locust, because their histograms of percentiles are not enough. We want every
wait, including those of the buyers who still wait when the time is up, since an unfair lock makes
these wait longest; and we want to know how many orders each buyer got.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Self

from example_project.service import HOST

NO_ANSWER = 0


@dataclass(frozen=True)
class Answer:
    """An answered request; `began` and `ended` are readings of the monotonic clock."""

    buyer: int
    status: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Crowd:
    """Buyers with a persistent connection each."""

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
        """Let all buy, each a random product, until a reading of the monotonic clock."""
        await asyncio.gather(*(self._repeat("POST", buyer, end, paths) for buyer in self._all()))

    async def buy_once(self, path: str) -> None:
        """Let all buy once, at the same moment."""
        await asyncio.gather(*(self._send("POST", buyer, path) for buyer in self._all()))

    async def look_until(self, end: float, path: str, pause: float) -> None:
        await asyncio.gather(
            *(self._repeat("GET", buyer, end, [path], pause) for buyer in self._all())
        )

    def _all(self) -> range:
        return range(self.count)

    async def _repeat(
        self, method: str, buyer: int, end: float, paths: list[str], pause: float = 0
    ) -> None:
        while time.monotonic() < end:
            if await self._send(method, buyer, random.choice(paths)) == NO_ANSWER:
                return
            if pause:
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
    """Read an answer and return its status; raise ``ValueError`` if it is none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    await reader.readexactly(int(headers["content-length"]))
    return int(first.split(" ")[1])
