"""A TCP proxy in front of a server, which misbehaves on command as networks do."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Self


class Proxy:
    """Forwards connections to a port of this machine.

    ``lose_replies(n)`` lets the next n replies of the server vanish together with the connection,
    after the server has carried the command out: what a client can't tell from a command that
    never arrived. ``silence()`` makes the open connections dead without a word (half-open), while
    new ones work. ``hold_back()`` stops all traffic, also of new connections, until ``let_go()``
    delivers what was sent meanwhile, as TCP does after a gap. With ``tls`` its clients speak TLS.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._mutex = threading.Lock()
        self._to_lose = 0
        self._marker = b""
        self._refusals: dict[bytes, bytes] = {}
        self.lost = threading.Semaphore(0)  # one for each reply lost
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[_Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        _close(self._listener)  # wakes the thread that accepts
        self.let_go()
        self.cut()

    def lose_replies(self, count: int, marker: bytes = b"EVAL") -> None:
        """Lose the replies to the next ``count`` commands that contain ``marker``."""
        with self._mutex:
            self._to_lose, self._marker = count, marker

    def refuse(self, marker: bytes, reply: bytes) -> None:
        """Answer commands that contain ``marker`` with ``reply`` in place of the server."""
        self._refusals[marker] = reply

    def refusal(self, request: bytes) -> bytes | None:
        """Return what a request is answered with in place of the server."""
        return next((self._refusals[one] for one in self._refusals if one in request), None)

    def silence(self, *, listening_only: bool = False) -> None:
        """Let the connections that are open now go nowhere, without a word to either end."""
        for pair in self._open_pairs():
            if pair.listening or not listening_only:
                pair.silent = True

    def hold_back(self) -> None:
        self._flowing.clear()

    def let_go(self) -> None:
        self._flowing.set()

    def flow(self) -> None:
        """Return when something that was sent may arrive."""
        self._flowing.wait()

    def cut(self) -> int:
        pairs = self._open_pairs()
        for pair in pairs:
            pair.close()
        return len(pairs)

    def _open_pairs(self) -> list[_Pair]:
        with self._mutex:
            self._pairs = [pair for pair in self._pairs if pair.open]
            return list(self._pairs)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if self._tls is not None:
                        client = self._tls.wrap_socket(client, server_side=True)
                    server = socket.create_connection(self._target)
                except OSError:  # it is down just now, or the client does not trust it
                    _close(client)
                    continue
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
        self.open = True
        self.silent = False
        self.listening = False

    def close(self) -> None:
        self.open = False
        _close(self._client)
        _close(self._server)

    def forward_requests(self) -> None:
        with contextlib.suppress(OSError):
            while request := self._client.recv(65536):
                if self.silent:
                    continue
                refusal = self._proxy.refusal(request)
                if refusal is not None:
                    self._client.sendall(refusal)
                    continue
                self.listening = self.listening or b"SUBSCRIBE" in request
                self._losing = self._proxy.loses(request)
                self._proxy.flow()
                self._server.sendall(request)
        self._proxy.flow()  # nor is it known before that the client has gone
        self.open = False
        _close(self._server)

    def forward_replies(self) -> None:
        with contextlib.suppress(OSError):
            while reply := self._server.recv(65536):
                if self.silent:
                    continue
                self._proxy.flow()
                if self._losing:
                    self._proxy.lost.release()
                    break
                self._client.sendall(reply)
        self.close()


def _close(item: socket.socket) -> None:
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
    item.close()
