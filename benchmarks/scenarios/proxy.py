"""A TCP proxy that counts round trips and bytes between clients and the server."""

import selectors
import socket
from dataclasses import dataclass
from threading import Thread
from typing import Self


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


class CountingProxy:
    """Listens on a free port and forwards everything to the server, in one thread."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.traffic = Traffic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._client_sent_last: dict[socket.socket, bool] = {}
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._waker.close()
        self._thread.join()
        self._selector.close()
        for one in (*self._peers, self._listener, self._wake):
            one.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                match key.fileobj:
                    case self._wake:
                        return
                    case self._listener:
                        self._open()
                    case socket.socket() as source:
                        self._forward(source)

    def _open(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)
        self._clients.add(client)
        self._client_sent_last[client] = False
        self.traffic.connections += 1

    def _forward(self, source: socket.socket) -> None:
        if source not in self._peers:
            return  # closed together with its peer in this turn of the loop
        try:
            data = source.recv(65536)
            if data:
                self._count(source, len(data))
                self._peers[source].sendall(data)
                return
        except OSError:
            pass
        for one in (source, self._peers[source]):
            self._selector.unregister(one)
            self._peers.pop(one)
            one.close()

    def _count(self, source: socket.socket, size: int) -> None:
        if source in self._clients:
            self.traffic.sent += size
            self.traffic.round_trips += not self._client_sent_last[source]
            self._client_sent_last[source] = True
        else:
            self.traffic.received += size
            self._client_sent_last[self._peers[source]] = False
