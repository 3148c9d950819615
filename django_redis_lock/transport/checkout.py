"""A connection that was taken from a pool, and the replies that are still due on it."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from time import monotonic
from typing import Any

import redis
from redis.exceptions import ResponseError

from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.redis_py import (
    cluster_error,
    is_closed,
    parse_error,
    socket_of,
    speaks_plain_resp2,
)
from django_redis_lock.transport.resp import Replies

_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Makes Linux hold bytes back for up to 200 ms, until more follow."""


class Checkout:
    """A connection that was taken from a pool."""

    __slots__ = (
        "__weakref__",
        "_due_on",
        "_limited",
        "_plain",
        "_replies",
        "connection",
        "due",
        "since",
    )

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._plain = speaks_plain_resp2(connection)
        self._replies: Replies | None = None
        self._limited = False
        self.since = monotonic()
        self.due = 0  # replies to posted calls that were not read yet
        self._due_on: Any = None  # the socket on which they come

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return not is_closed(self.connection)

    @property
    def has_surplus(self) -> bool:
        """Whether bytes were received that belong to no call, which redis-py could not see."""
        return self._replies is not None and not self._replies.drained

    def open(self) -> Checkout:
        """Reconnect. Raises ``RedisError`` and ``OSError``."""
        self.disconnect()
        try:
            self.connection.connect()
        except BaseException:
            self.connection.disconnect()  # a reply to the handshake may still come
            raise
        return self

    def disconnect(self) -> None:
        """Close the connection."""
        self.due = 0
        self.connection.disconnect()

    def limit(self, until: float) -> None:
        """Wait for replies ``until`` (monotonic), or as long as its own timeout if that is less."""
        current = socket_of(self.connection)
        if current is None:
            return
        own, left = self.connection.socket_timeout, max(0.001, until - monotonic())
        if own is None or left < own:
            current.settimeout(left)
            self._limited = True

    def unlimit(self) -> None:
        """Wait for replies as long as its own timeout again."""
        current = socket_of(self.connection)
        if self._limited and current is not None:
            current.settimeout(self.connection.socket_timeout)
        self._limited = False

    def send(self, commands: bytes) -> None:
        """Send one or more commands."""
        if self._plain:
            socket_of(self.connection).sendall(commands)
        else:
            # A health check would take a reply that is due for its own.
            self.connection.send_packed_command([commands], check_health=not self.due)

    def read(self, says_ok: bool = False) -> Any:
        """Return a reply, or the server's error.

        Raises ``ConnectionError`` for a reply that belongs to the handshake of the connection.
        """
        if self._plain:
            replies, current = self._replies, socket_of(self.connection)
            if replies is None or replies.socket is not current:
                replies = Replies(current, partial(parse_error, self.connection))
                self._replies = replies
            reply = replies.read()
        else:
            try:
                reply = self.connection.read_response(disable_decoding=True)
            except ResponseError as error:
                return cluster_error(error)
        if (reply == b"OK" and not says_ok) or isinstance(reply, dict):
            raise redis.exceptions.ConnectionError("The connection is out of step")
        return reply

    def post(self, packed: Packed) -> None:
        """Send a call whose reply is read later; it may share a packet with the next command.

        It includes the script's source: there may be no one to send it again in time to a server
        that does not know the script.
        """
        command = packed.pack(with_source=True)
        current = socket_of(self.connection)
        if _is_plain_tcp(current):
            current.sendall(command, _MORE_FOLLOWS)
        else:
            self.send(command)
        self.due += 1
        self._due_on = socket_of(self.connection)

    def settle(self) -> None:
        """Send what was held back and read what is due. Raises ``RedisError`` and ``OSError``."""
        current = socket_of(self.connection)
        if self.due and _is_plain_tcp(current):
            current.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # flushes, on Linux
        self.read_due()

    def read_due(self) -> None:
        """Read and drop the replies to posted calls."""
        due, self.due = self.due, 0
        if self._due_on is socket_of(self.connection):  # else they were lost with their socket
            for _ in range(due):
                self.read()


def _is_plain_tcp(sock: Any) -> bool:
    """Whether a socket is one of TCP without TLS."""
    family = getattr(sock, "family", None)
    return family in (socket.AF_INET, socket.AF_INET6) and not isinstance(sock, ssl.SSLSocket)
