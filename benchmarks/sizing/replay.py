"""Requests of a real client, sent again as fast as the server answers.

Clients in Python need more processor time for a pair than the server does. What a server carries
shows only when they are cheaper: their requests are recorded once, and then only written.
"""

import selectors
import socket
from time import perf_counter

from example_project.service import HOST

ROOM = 65_536
"""More bytes than an answer has."""


class Player:
    """A connection that sends its requests in turn, each when the one before was answered."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = requests
        self.answered = 0

    def send(self) -> None:
        """Send the next request."""
        self.socket.sendall(self._requests[self.answered % len(self._requests)])

    def receive(self) -> None:
        """Take the answer to it, which is short and comes as one."""
        answer = self.socket.recv(ROOM)
        if not answer.endswith(b"\r\n") or answer.startswith(b"-"):
            raise ConnectionError(f"the server answered {answer[:100]!r}")
        self.answered += 1


def play(port: int, requests: list[bytes], connections: int, seconds: float) -> float:
    """Return how many requests a second were answered on so many connections.

    Each of them has a part of the requests to itself, in their order and in whole pairs.
    """
    share = len(requests) // connections // 2 * 2
    with selectors.DefaultSelector() as selector:
        players = [
            Player(port, requests[start : start + share])
            for start in range(0, share * connections, share)
        ]
        try:
            for player in players:
                selector.register(player.socket, selectors.EVENT_READ, player)
                player.send()
            began = perf_counter()
            while (elapsed := perf_counter() - began) < seconds:
                for key, _ in selector.select():
                    key.data.receive()
                    key.data.send()
        finally:
            for player in players:
                player.socket.close()
    return sum(player.answered for player in players) / elapsed
