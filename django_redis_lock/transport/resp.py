"""Packs commands and reads replies in RESP2, faster than redis-py does either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis

_RECEIVED = 65536
"""Bytes to read at once."""
_NUMBER, _TEXT = b":$"


def pack(items: Iterable[bytes | str | int]) -> bytes:
    """Return a command as RESP."""
    packed = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    text = b"".join([b"$%d\r\n%b\r\n" % (len(item), item) for item in packed])
    return b"*%d\r\n%b" % (len(packed), text)


def bulk(item: str) -> str:
    """Return ASCII text as one item of a command, for ``pack_onto``."""
    return f"${len(item)}\r\n{item}\r\n"


def pack_onto(head: str, count: int, items: Sequence[str]) -> bytes:
    """Return a command whose first ``count`` items are packed as ``head`` already."""
    text = "\r\n".join([_LENGTHS[len(item)] + item for item in items]) + "\r\n"
    if not text.isascii():
        # Lengths count bytes: let each character stand for one byte of the UTF-8.
        text = "".join([bulk(item.encode().decode("latin-1")) for item in items])
    return f"*{count + len(items)}\r\n{head}{text}".encode("latin-1")


class _Lengths(dict[int, str]):
    """The prefix of an item by its length; formatting the number takes longer than the rest."""

    def __missing__(self, length: int) -> str:
        prefix = self[length] = f"${length}\r\n"
        return prefix


_LENGTHS = _Lengths()


class Replies:
    """Reads replies from a socket, and buffers what was received beyond the last one.

    ``error_of`` makes an exception from the text of the server's error.
    """

    __slots__ = ("_buffer", "_error_of", "_start", "socket")

    def __init__(self, socket: Any, error_of: Callable[[str], Exception]) -> None:
        self.socket = socket
        self._error_of = error_of
        self._buffer = b""
        self._start = 0  # of the next reply

    @property
    def drained(self) -> bool:
        """Whether nothing was received beyond the last reply."""
        return self._start == len(self._buffer)

    def arrive(self, seconds: float) -> bool:
        """Return whether the next reply begins to arrive within some seconds."""
        if not self.drained:
            return True
        own = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self._receive()
        except redis.TimeoutError:
            return False
        finally:
            self.socket.settimeout(own)
        return True

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
            error = self._error_of(text.decode(errors="replace"))
            if isinstance(error, redis.ConnectionError):
                raise error
            return error
        if kind == b"+":
            return text
        raise redis.InvalidResponse(f"Protocol Error: {line!r}")

    def _items(self, count: int) -> list[Any]:
        """Read the items of an array.

        Numbers and texts that are buffered already are read in place: a page of locks has 1500
        items, and calling ``read`` for each took longer than everything else.
        """
        items: list[Any] = []
        for _ in range(count):
            buffer, start = self._buffer, self._start
            end = buffer.find(b"\r\n", start)
            kind = buffer[start] if end > 0 else None
            if kind == _NUMBER:
                items.append(int(buffer[start + 1 : end]))
                self._start = end + 2
                continue
            length = int(buffer[start + 1 : end]) if kind == _TEXT else -1
            if 0 <= length < len(buffer) - end - 3:
                items.append(buffer[end + 2 : end + 2 + length])
                self._start = end + length + 4
            else:
                items.append(self.read())
        return items

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._start)) < 0:
            self._receive()
        line = self._buffer[self._start : end]
        self._start = end + 2
        return line

    def _bytes(self, length: int) -> bytes | None:
        if length < 0:
            return None
        while len(self._buffer) < self._start + length + 2:
            self._receive()
        start, self._start = self._start, self._start + length + 2
        return self._buffer[start : start + length]

    def _receive(self) -> None:
        try:
            received = self.socket.recv(_RECEIVED)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from socket") from error
        if not received:
            raise redis.ConnectionError("Connection closed by server.")
        self._buffer = self._buffer[self._start :] + received
        self._start = 0
