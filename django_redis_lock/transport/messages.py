"""Reads what a server sends at any time, faster than redis-py does."""

from __future__ import annotations

from functools import partial
from typing import Any

import redis

from django_redis_lock.transport.redis_py import parse_error, socket_of, speaks_plain_resp2
from django_redis_lock.transport.resp import Replies

NOTHING = object()
"""In place of a message: none has come."""


def messages_of(connection: Any) -> Messages:
    """Return what reads the messages of an open connection."""
    return _PlainMessages(connection) if speaks_plain_resp2(connection) else Messages(connection)


class Messages:
    """The messages of a connection of any class, which redis-py reads."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def wait(self, seconds: float) -> Any:
        """Return a message, or ``NOTHING`` if none comes within some seconds.

        Raises the server's error, and whatever a broken connection raises.
        """
        return self.read() if self.connection.can_read(timeout=seconds) else NOTHING

    def read(self) -> Any:
        """Return the next message, which must come within the timeout of the connection."""
        return self.connection.read_response(disable_decoding=True)

    def disconnect(self) -> None:
        """Close the connection."""
        self.connection.disconnect()


class _PlainMessages(Messages):
    """The same without redis-py, which takes four system calls for each message."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._replies = _WholeReplies(socket_of(connection), partial(parse_error, connection))
        self._timeout = -1.0

    def wait(self, seconds: float) -> Any:
        if seconds != self._timeout:
            self._replies.socket.settimeout(seconds)
            self._timeout = seconds
        try:
            return self.read()
        except redis.TimeoutError:
            return NOTHING

    def read(self) -> Any:
        message = self._replies.read_whole()
        if isinstance(message, Exception):
            raise message
        return message


class _WholeReplies(Replies):
    """Replies of which a part that came too early is read again with the rest."""

    __slots__ = ("_first",)

    def read_whole(self) -> Any:
        """Return a reply. After ``redis.TimeoutError`` it can be called again."""
        self._first = self._start
        try:
            return self.read()
        except redis.TimeoutError:
            self._start = self._first
            raise

    def _receive(self) -> None:
        begun = self._buffer[self._first : self._start]
        super()._receive()
        self._buffer = begun + self._buffer
        self._first, self._start = 0, len(begun)
