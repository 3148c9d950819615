"""Sends packed calls over connections of its own, blocking until they are answered."""

from __future__ import annotations

import math
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from os import getpid
from time import monotonic
from typing import Any, TypeVar

import redis
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.support.threads import from_below, struck
from django_redis_lock.transport import redis_py
from django_redis_lock.transport.connections import connect, leave_to_parent
from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.redis_py import socket_of

Result = TypeVar("Result")
_RECEIVED = 65536  # bytes to read at once
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Makes Linux hold bytes back for up to 200 ms, until more follow."""
NOTHING = object()  # in place of a message or a reply: none has come
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises that would have to block."""


class BlockingClient:
    """Sends calls over connections of its own, made with the settings of a pool of redis-py's.

    A connection that a signal handler interrupts is closed, so that no call reads another's reply.
    """

    MOST_IDLE = 8  # how many connections stay open while no call uses them

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[Connection] = []  # its pop() and append() are atomic
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()  # redis-py's connections
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave all connections to the parent process, even one that this child was reading."""
        opened, self._opened, self._idle = [*self._opened], weakref.WeakSet(), []
        for origin in opened:
            leave_to_parent(origin)

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.finish()

    def call(self, packed: Packed) -> Any:
        """Return the reply to a call. Raises ``RedisError``, ``OSError``, ``LockUnavailable``."""
        reply = self._exchange(Connection.ask, packed, packed.repeatable, packed.until)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(self, batch: Sequence[Packed]) -> list[Any]:
        """Send calls in one go; return the reply, or the server's error, to each."""
        repeatable = all(packed.repeatable for packed in batch)
        until = min(packed.until for packed in batch)
        return self._exchange(Connection.ask_all, batch, repeatable, until)

    def post(self, packed: Packed) -> None:
        """Send a call without waiting for its reply, which is dropped.

        It leaves within about 200 ms, so that it can share a packet with another call, and is lost
        if the connection breaks afterwards. Raises ``RedisError`` and ``OSError``.
        """
        self._exchange(Connection.post, packed, packed.repeatable, packed.until)

    def _exchange(
        self, talk: Callable[[Connection, Any], Result], what: Any, repeatable: bool, until: float
    ) -> Result:
        try:
            connection, is_new = self._idle.pop(), False
        except IndexError:
            connection, is_new = self._open(until), True
        try:
            if until != math.inf:
                connection.limit(until)
            result = talk(connection, what)
            if until != math.inf:
                connection.unlimit()
        except BaseException as error:
            if self._broke(connection, is_new, error) and repeatable:
                return self._exchange(talk, what, repeatable, until)
            raise
        if len(self._idle) < self.MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.finish()
        return result

    def _broke(self, connection: Connection, is_new: bool, error: BaseException) -> bool:
        """Close a connection; return whether the server may have closed it while it was idle."""
        connection.close()
        if struck(error):
            return False
        if isinstance(error, TimeoutError):
            raise redis.TimeoutError("Timeout reading from socket") from error
        if is_new or not isinstance(error, redis.ConnectionError | OSError):
            return False
        idle, self._idle = self._idle, []
        for other in idle:  # which it has probably closed, too
            other.close()
        return True

    def _open(self, until: float) -> Connection:
        origin = connect(self._pool, until)
        self._opened.add(origin)
        if origin.pid != getpid():
            leave_to_parent(origin)
            raise redis.ConnectionError("The process was forked while it connected")
        return Connection(origin)


class Connection:
    """An open connection of redis-py's, whose own methods would take twice the time."""

    def __init__(self, origin: Any) -> None:
        self.origin = origin
        self.due = 0  # replies to posted calls that were not read yet
        self._limited = False
        self._buffer = b""  # what was received beyond the last reply
        self._start = 0  # of what was not read yet
        sock = socket_of(origin)
        if sock is None:
            raise redis.ConnectionError(f"{type(origin).__name__} has no usable socket")
        self.send, self._receive = sock.sendall, sock.recv
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        self._more = _MORE_FOLLOWS if is_tcp and not isinstance(sock, ssl.SSLSocket) else 0

    def close(self) -> None:
        """Close it; replies that are due are lost."""
        self.origin.disconnect()

    def finish(self) -> None:
        """Close it once what was posted over it is carried out."""
        try:
            if self._more and self.due:  # without a delay it sends what was held back
                socket_of(self.origin).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.read_due()
        except from_below(RedisError, OSError):
            pass
        finally:
            self.close()

    def limit(self, until: float) -> None:
        """Wait for replies ``until`` (monotonic), or as long as its own timeout if that is less."""
        sock, own = socket_of(self.origin), self.origin.socket_timeout
        left = max(0.001, until - monotonic())
        if sock is not None and (own is None or left < own):
            self._limited = True
            sock.settimeout(left)

    def unlimit(self) -> None:
        """Wait for replies as long as its own timeout again."""
        if self._limited:
            socket_of(self.origin).settimeout(self.origin.socket_timeout)
            self._limited = False

    def ask(self, packed: Packed) -> Any:
        """Send a call; return its reply, or the server's error."""
        packed.sending()
        self.send(packed.script.pack(packed.keys, packed.args))
        if self.due:
            self.read_due()
        reply = self.read()
        if packed.replicas is not None or isinstance(reply, ResponseError):
            reply = self.complete(packed, reply)
        return reply

    def ask_all(self, batch: Sequence[Packed]) -> list[Any]:
        for packed in batch:
            packed.sending()
        self.send(b"".join([packed.pack() for packed in batch]))
        self.read_due()
        replies = [self.read() for _ in batch]
        return list(map(self.complete, batch, replies))

    def post(self, packed: Packed) -> None:
        """Send a call whose reply is read later; it may share a packet with the next command."""
        packed.sending()
        # With the source: a reply that the server does not know the script may be read too late.
        self.send(packed.pack(with_source=True), self._more)
        self.due += 1

    def read_due(self) -> None:
        due, self.due = self.due, 0
        for _ in range(due):
            self.read()

    def complete(self, packed: Packed, reply: Any) -> Any:
        steps = packed.completed(reply)
        try:
            command = next(steps)
            while True:
                if packed.until != math.inf:
                    self.limit(packed.until)
                self.send(command)
                command = steps.send(self.read())
        except StopIteration as stop:
            reply = stop.value
        if is_read_only(reply):
            raise reply  # the server is no longer the master, so the connection is closed
        return reply

    def receive(self, seconds: float) -> Any:
        """Return a message, or ``NOTHING`` if none begins to arrive within some seconds.

        Raises as ``read_confirmed``. The timeout of the socket stays changed: to set it back would
        delay the receiver of a message.
        """
        if not self._buffer:
            sock = socket_of(self.origin)
            sock.settimeout(seconds)
            try:
                self._receive_more()
            except from_below(TimeoutError):
                return NOTHING
            if not self._buffer.endswith(b"\r\n"):  # the rest may take longer
                sock.settimeout(self.origin.socket_timeout)
        return self.read_confirmed()

    def read_confirmed(self) -> Any:
        """Return a reply. Raises the server's error, ``RedisError`` and ``OSError``."""
        reply = self.read()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def read(self) -> Any:
        """Return a reply, or the server's error. Raises ``RedisError`` and ``OSError``."""
        if not self._buffer:
            received = self._receive(_RECEIVED)
            if received[:1] == b":" and 0 < received.find(b"\r\n") == len(received) - 2:
                return int(received[1:])
            self._buffer = received
        while True:
            try:
                reply, end = self._parse(self._start)
                break
            except _Incomplete:
                self._receive_more()
        if end >= min(len(self._buffer), _RECEIVED):
            self._buffer, end = self._buffer[end:], 0
        self._start = end
        if isinstance(reply, redis.ConnectionError):
            raise reply
        return reply

    def read_arrived(self) -> Any:
        """Return a reply as ``read``, or ``NOTHING``; the next call goes on with the same reply."""
        try:
            return self.read()
        except NOT_NOW:
            return NOTHING

    def _parse(self, start: int) -> tuple[Any, int]:
        """Return the reply that begins there, and where it ends. Raises ``_Incomplete``."""
        data = self._buffer
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            raise _Incomplete
        kind, text, end = data[start : start + 1], data[start + 1 : line_end], line_end + 2
        if kind == b":":
            return int(text), end
        if kind == b"+":
            return text, end
        if kind == b"-":
            return redis_py.parse_error(self.origin, text.decode(errors="replace")), end
        if kind not in (b"$", b"*"):
            raise redis.InvalidResponse(f"Protocol Error: {data[start:line_end]!r}")
        size = int(text)
        if size < 0:
            return None, end
        if kind == b"$":
            if len(data) < end + size + 2:
                raise _Incomplete
            return data[end : end + size], end + size + 2
        items = []
        for _ in range(size):
            item, end = self._parse(end)
            items.append(item)
        return items, end

    def _receive_more(self) -> None:
        received = self._receive(_RECEIVED)
        if not received:
            raise redis.ConnectionError("Connection closed by server.")
        self._buffer, self._start = self._buffer[self._start :] + received, 0


class _Incomplete(Exception):
    """The rest of a reply has to arrive first."""


def is_read_only(error: object) -> bool:
    """Whether a server refused to write because it is a replica."""
    # Older servers report it inside the error of the script.
    in_text = isinstance(error, ResponseError) and "READONLY" in str(error)
    return in_text or isinstance(error, ReadOnlyError)
