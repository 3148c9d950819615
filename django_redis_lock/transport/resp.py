"""Reads the replies of RESP2 from a socket, in less than half of the time that redis-py takes."""

from __future__ import annotations

from typing import Any

import redis
from redis.connection import AbstractConnection

_RECEIVED = 65536
"""Bytes that are read at once."""
_NUMBER, _TEXT = b":$"


def reads_plainly(connection: Any) -> bool:
    """Whether what a connection of redis-py sends and reads is the bare protocol, as read here.

    A class that does more than redis-py's own does it itself, and so does RESP3, where messages
    come that nobody asked for; and where the health of a connection is checked, replies do.
    """
    kind = type(connection)
    return (
        getattr(kind, "read_response", None) is AbstractConnection.read_response
        and getattr(kind, "send_packed_command", None) is AbstractConnection.send_packed_command
        and str(connection.protocol) == "2"
        and not connection.health_check_interval
    )


class Replies:
    """The replies that come on one socket; what was read of the next one is kept here."""

    __slots__ = ("_connection", "_from", "_read", "wire")

    def __init__(self, connection: Any) -> None:
        self.wire = connection._sock
        self._connection = connection
        self._read = b""
        self._from = 0  # where the next reply begins

    @property
    def ended(self) -> bool:
        """Whether nothing was read beyond the last reply."""
        return self._from == len(self._read)

    def read(self) -> Any:
        """Return a reply, or the server's error. Raises ``RedisError`` and ``OSError``."""
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b":":
            return int(text)
        if kind == b"$":
            return self._bytes(int(text))
        if kind == b"*":
            return None if text == b"-1" else self._items(int(text))
        if kind == b"-":
            error = self._connection._parser.parse_error(text.decode(errors="replace"))
            if isinstance(error, redis.ConnectionError):
                raise error
            return error
        if kind == b"+":
            return text
        raise redis.InvalidResponse(f"Protocol Error: {line!r}")

    def _items(self, count: int) -> list[Any]:
        """Read what an array holds; the numbers and texts that are here already at once.

        A page of locks has 1500 items, and a call of ``read`` for each took longer than all else.
        """
        items: list[Any] = []
        for _ in range(count):
            read, begin = self._read, self._from
            end = read.find(b"\r\n", begin)
            kind = read[begin] if end > 0 else None
            if kind == _NUMBER:
                items.append(int(read[begin + 1 : end]))
                self._from = end + 2
                continue
            length = int(read[begin + 1 : end]) if kind == _TEXT else -1
            if 0 <= length < len(read) - end - 3:
                items.append(read[end + 2 : end + 2 + length])
                self._from = end + length + 4
            else:
                items.append(self.read())
        return items

    def _line(self) -> bytes:
        while (end := self._read.find(b"\r\n", self._from)) < 0:
            self._receive()
        line = self._read[self._from : end]
        self._from = end + 2
        return line

    def _bytes(self, length: int) -> bytes | None:
        if length < 0:
            return None
        while len(self._read) < self._from + length + 2:
            self._receive()
        begin, self._from = self._from, self._from + length + 2
        return self._read[begin : begin + length]

    def _receive(self) -> None:
        try:
            received = self.wire.recv(_RECEIVED)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from socket") from error
        if not received:
            raise redis.ConnectionError("Connection closed by server.")
        self._read = self._read[self._from :] + received
        self._from = 0
