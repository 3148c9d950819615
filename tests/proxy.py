"""A TCP proxy in front of a server, which loses replies on command."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections to a port of this machine.

    ``lose_replies(n)`` lets the next n replies of the server vanish together with the connection,
    after the server has carried the command out: what a client can't tell from a command that
    never arrived.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._mutex = threading.Lock()
        self._to_lose = 0
        self._marker = b""
        self.lost = threading.Semaphore(0)  # one for each reply lost
        self._sockets: list[socket.socket] = []
        self._pairs: list[_Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        self.cut()

    def lose_replies(self, count: int, marker: bytes = b"EVAL") -> None:
        """Lose the replies to the next ``count`` commands that contain ``marker``."""
        with self._mutex:
            self._to_lose, self._marker = count, marker

    def silence(self, *, listening_only: bool = False) -> None:
        """Let the connections that are open now go nowhere, without a word to either end."""
        with self._mutex:
            pairs = [pair for pair in self._pairs if pair.listening or not listening_only]
        for pair in pairs:
            pair.silent = True

    def cut(self) -> None:
        """Close every connection."""
        with self._mutex:
            sockets, self._sockets = self._sockets, []
        for item in sockets:
            _close(item)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                with self._mutex:
                    self._sockets += [client, server]
                pair = _Pair(self, client, server)
                with self._mutex:
                    self._pairs.append(pair)
                threading.Thread(target=pair.forward_requests, daemon=True).start()
                threading.Thread(target=pair.forward_replies, daemon=True).start()

    def loses(self, request: bytes) -> bool:
        """Whether the reply to a request is to be lost."""
        with self._mutex:
            if not self._to_lose or self._marker not in request:
                return False
            self._to_lose -= 1
            return True


class _Pair:
    """One connection of a client and its counterpart to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._losing = False
        self.silent = False
        self.listening = False

    def forward_requests(self) -> None:
        with contextlib.suppress(OSError):
            while request := self._client.recv(65536):
                if self.silent:
                    continue
                self.listening = self.listening or b"SUBSCRIBE" in request
                self._losing = self._proxy.loses(request)
                self._server.sendall(request)
        _close(self._server)

    def forward_replies(self) -> None:
        with contextlib.suppress(OSError):
            while reply := self._server.recv(65536):
                if self.silent:
                    continue
                if self._losing:
                    self._proxy.lost.release()
                    break
                self._client.sendall(reply)
        _close(self._client)
        _close(self._server)


def _close(item: socket.socket) -> None:
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
    item.close()
