"""A TCP proxy that counts round trips and bytes between clients and the server."""

import asyncio
from dataclasses import dataclass, field
from threading import Thread
from typing import Self

from example_project.service import HOST


@dataclass
class Traffic:
    """What has passed through.

    A round trip begins with bytes from the client on a connection that is new or on which the
    server sent last. Commands sent together are one round trip.
    """

    round_trips: int = 0
    sent: int = 0
    received: int = 0
    connections: int = 0
    requests: list[bytearray] = field(default_factory=list)
    """What the clients sent in each round trip."""


class CountingProxy:
    """Listens on a free port and forwards everything to the server, in one thread."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.traffic = Traffic()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        server, requests = await asyncio.open_connection(HOST, self._target)
        client_sent_last = False

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal client_sent_last
            while data := await source.read(65536):
                if source is client:
                    self.traffic.sent += len(data)
                    self.traffic.round_trips += not client_sent_last
                    if not (client_sent_last and self.traffic.requests):
                        self.traffic.requests.append(bytearray())
                    self.traffic.requests[-1] += data
                else:
                    self.traffic.received += len(data)
                client_sent_last = source is client
                sink.write(data)
                await sink.drain()
            sink.close()

        try:
            await asyncio.gather(forward(client, requests), forward(server, answers))
        except (OSError, asyncio.CancelledError):
            requests.close()
            answers.close()
