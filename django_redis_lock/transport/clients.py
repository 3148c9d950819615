"""Sends packed calls over connections of redis-py's pools, with blocking."""

from __future__ import annotations

import inspect
import socket
import ssl
import weakref
from collections.abc import Sequence
from functools import partial
from os import getpid
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.transport.aside import unmet_by_signals
from django_redis_lock.transport.connections import disconnect_idle, leave_to_parent
from django_redis_lock.transport.packing import Packed, Replicas
from django_redis_lock.transport.resp import Replies, reads_plainly

_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
"""Has Linux hold bytes back until more follow, for about 200 ms at the most."""
_BROKEN = (RedisError, OSError, AttributeError, TypeError, ValueError)
"""What redis-py raises for a broken connection; the last three where another thread closes the
pool's connections, as django-redis does after each request with DJANGO_REDIS_CLOSE_CONNECTION."""


class Checkout:
    """A connection that is out of the pool, and the replies that it still brings."""

    __slots__ = ("__weakref__", "_plain", "_replies", "connection", "owed", "owed_on", "since")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._plain = reads_plainly(connection)
        self._replies: Replies | None = None
        self.since = monotonic()
        self.owed = 0  # replies to calls that were sent, not read yet
        self.owed_on: Any = None  # the socket on which those come

    @property
    def wire(self) -> Any:
        """The socket; ``None`` while there is none, or where redis-py keeps it elsewhere."""
        return getattr(self.connection, "_sock", None)

    @property
    def is_open(self) -> bool:
        """Whether the connection was not closed, as far as it is known here."""
        return getattr(self.connection, "_sock", self) is not None

    @property
    def is_ahead(self) -> bool:
        """Whether something was read that belongs to no call, which redis-py would not see."""
        return self._replies is not None and not self._replies.ended

    def open(self) -> Checkout:
        """Open the connection anew. Raises ``RedisError`` and ``OSError``."""
        self.disconnect()
        try:
            self.connection.connect()
        except BaseException:
            self.connection.disconnect()  # an answer of the handshake may still come
            raise
        return self

    def disconnect(self) -> None:
        """Close the connection."""
        self.owed = 0
        self.connection.disconnect()

    def send(self, command: bytes) -> None:
        """Send a command, or several."""
        if self._plain:
            self.connection._sock.sendall(command)
        else:
            # A health check would take a reply that is owed for its own.
            self.connection.send_packed_command([command], check_health=not self.owed)

    def read(self, says_ok: bool = False) -> Any:
        """Read a reply; the server's error is returned rather than raised.

        Raises ``RedisError`` for one that belongs to the handshake of a connection.
        """
        if self._plain:
            replies = self._replies
            if replies is None or replies.wire is not self.connection._sock:
                replies = self._replies = Replies(self.connection)
            reply = replies.read()
        else:
            try:
                reply = self.connection.read_response(disable_decoding=True)
            except ResponseError as error:
                return error
        if (reply == b"OK" and not says_ok) or isinstance(reply, dict):
            raise redis.exceptions.ConnectionError("The connection is out of step")
        return reply

    def post(self, packed: Packed) -> None:
        """Send a call whose reply is read later; it may share a packet with what is sent next.

        It brings its source: nobody may be there in time to send it again to a server that does not
        know the script.
        """
        command = packed.pack(with_source=True)
        wire = self.wire
        if _is_plain(wire):
            wire.sendall(command, _MORE_FOLLOWS)
        else:
            self.send(command)
        self.owed += 1
        self.owed_on = self.wire

    def settle(self) -> None:
        """Have the connection owe nothing any more. Raises ``RedisError`` and ``OSError``."""
        if self.owed and _is_plain(self.wire):
            # Sends what was held back, for nothing follows.
            self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read_owed()

    def read_owed(self) -> None:
        """Read the replies that are owed; what is wrong with them is no concern of the reader."""
        owed, self.owed = self.owed, 0
        if self.owed_on is self.wire:  # else it was closed meanwhile, and they went with it
            for _ in range(owed):
                self.read()


class _Trace(weakref.ref[Checkout]):
    """Knows the connection of a checkout after that is gone."""

    __slots__ = ("connection",)
    connection: Any


class BlockingClient:
    """Sends calls over the connections of a redis-py pool.

    It goes below ``Redis.execute_command``, and keeps one connection for up to a second between
    calls rather than taking it from the pool and checking it each time: together that is a third
    of what an uncontended call costs the client. Calls are safe to send twice, so a connection that
    went stale meanwhile costs another sending and nothing else. One that broke is kept as well, and
    opened again by the next call.

    The exception of a signal handler can strike in any place. In the pool's own code it would lose
    a connection for good, so that is left to threads which no signal meets. Anywhere else it leaves
    a trace of the connection that nobody has in hand any more, and the next call takes that one.
    """

    KEEP = 1.0
    """Seconds for which a connection is used without returning to the pool."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._kept: list[Checkout] = []
        self._traces: dict[int, _Trace] = {}  # of what is out of the pool
        self._strays: list[_Trace] = []  # and of what nobody has in hand
        self._may_keep = pool.max_connections >= 4
        # redis-py 5.2 wants to be told the command; later versions object to it.
        parameter = inspect.signature(pool.get_connection).parameters.get("command_name")
        told = parameter is not None and parameter.default is parameter.empty
        self._checkout_args = ("EVALSHA",) if told else ()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process, even where this child was reading one."""
        for trace in [*self._traces.values()]:
            leave_to_parent(trace.connection)
        self._traces, self._strays, self._kept = {}, [], []

    def close(self) -> None:
        """Give the connections back to the pool."""
        while self._kept:
            unmet_by_signals(partial(self._give_back, self._kept.pop()))
        while self._strays:
            unmet_by_signals(self._give_back_stray)

    def call(self, packed: Packed) -> Any:
        """Send a call and return its reply.

        Raises ``RedisError`` and ``OSError``, and ``LockUnavailable`` where too few replicas
        acknowledged it.
        """
        command = packed.pack()
        checkout = self._take()
        try:
            packed.sending()
            checkout.send(command)
            if checkout.owed:
                checkout.read_owed()
            reply = checkout.read(packed.says_ok)
            if packed.replicas is not None or isinstance(reply, ResponseError):
                reply = _completed(checkout, packed, reply)
                _leave_replica(checkout, [reply])
        except BaseException as error:
            self._broke(checkout, error)
            raise
        self._keep(checkout)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(self, batch: Sequence[Packed]) -> list[Any]:
        """Send calls in one go; return the reply, or the server's error, to each."""
        commands = b"".join([packed.pack() for packed in batch])
        checkout = self._take()
        try:
            for packed in batch:
                packed.sending()
            checkout.send(commands)
            if checkout.owed:
                checkout.read_owed()
            replies = [checkout.read(packed.says_ok) for packed in batch]
            for number, packed in enumerate(batch):
                replies[number] = _completed(checkout, packed, replies[number])
            _leave_replica(checkout, replies)
        except BaseException as error:
            self._broke(checkout, error)
            raise
        self._keep(checkout)
        return replies

    def post(self, packed: Packed) -> None:
        """Send a call and don't wait for its reply, which nobody will see.

        It leaves at once, or within about 200 ms where another call follows that it can share a
        packet with. Raises ``RedisError`` and ``OSError``, but no error means only that it was
        sent: a connection that breaks afterwards may take it along.
        """
        checkout = self._take()
        try:
            packed.sending()
            checkout.post(packed)
        except BaseException as error:
            self._broke(checkout, error)
            raise
        self._keep(checkout)

    def _broke(self, checkout: Checkout, error: BaseException) -> None:
        """Use a connection no more on which a reply may still come, and say what happened."""
        checkout.disconnect()
        self._keep(checkout)
        if isinstance(error, AttributeError | TypeError | ValueError):
            raise redis.exceptions.ConnectionError(
                "The connection was closed while in use"
            ) from error

    def _keep(self, checkout: Checkout) -> None:
        if self._may_keep and not self._kept:
            self._kept.append(checkout)
        else:
            unmet_by_signals(partial(self._give_back, checkout))

    def _give_back(self, checkout: Checkout) -> None:
        """Return a connection to the pool, which must not find a reply on it."""
        if checkout.owed:
            try:
                checkout.settle()
            except _BROKEN:
                checkout.disconnect()
            except BaseException:
                checkout.disconnect()
                raise
        if checkout.is_ahead:
            checkout.disconnect()
        del self._traces[id(checkout.connection)]
        self._pool.release(checkout.connection)

    def _take(self) -> Checkout:
        if self._strays:
            return unmet_by_signals(self._recover)
        kept: Checkout | None = None
        try:
            kept = self._kept.pop()
        except IndexError:
            pass
        else:
            if monotonic() - kept.since < self.KEEP:
                return kept if kept.is_open else unmet_by_signals(kept.open)
        return unmet_by_signals(partial(self._check_out, kept))

    def _give_back_stray(self) -> None:
        checkout = self._traced(self._strays.pop().connection)
        checkout.disconnect()
        self._give_back(checkout)

    def _check_out(self, former: Checkout | None) -> Checkout:
        """Take a connection from the pool, having returned another."""
        if former is not None:
            self._give_back(former)
        try:
            connection = self._pool.get_connection(*self._checkout_args)
        except (RedisError, OSError):
            raise
        except BaseException:
            # An exception that met redis-py between a question of its handshake and the answer:
            # the connection is in the pool again, and the answer would be taken for ours.
            disconnect_idle(self._pool)
            raise
        if connection.pid != getpid():
            leave_to_parent(connection)  # forked while it connected; it will connect anew
        return self._traced(connection)

    def _traced(self, connection: Any) -> Checkout:
        checkout = Checkout(connection)
        # A callback in Python could be what the exception of a signal's handler strikes, and it
        # would be ignored there.
        trace = self._traces[id(connection)] = _Trace(checkout, self._strays.append)
        trace.connection = connection
        return checkout

    def _recover(self) -> Checkout:
        """Take a connection that nobody has in hand; a reply may be on its way."""
        try:
            connection = self._strays.pop().connection
        except IndexError:  # another thread was quicker
            return self._check_out(None)
        return self._traced(connection).open()


def _is_plain(wire: Any) -> bool:
    """Whether a socket is one of TCP, and not of TLS."""
    family = getattr(wire, "family", None)
    return family in (socket.AF_INET, socket.AF_INET6) and not isinstance(wire, ssl.SSLSocket)


def _completed(checkout: Checkout, packed: Packed, reply: Any) -> Any:
    """Return the reply to a call, once its script is known and its replicas have it."""
    if isinstance(reply, NoScriptError):
        checkout.send(packed.pack(with_source=True))
        reply = checkout.read()
    replicas = packed.awaited(reply)
    if replicas is not None:
        checkout.send(replicas.command)
        reply = acknowledged(reply, replicas, checkout.read())
    return reply


def _leave_replica(checkout: Checkout, replies: Sequence[Any]) -> None:
    """Close a connection to a server that is no master any more: another may be."""
    if any(map(is_read_only, replies)):
        checkout.disconnect()


def acknowledged(reply: Any, replicas: Replicas, number: Any) -> Any:
    """Return the reply to a call, or why it does not count."""
    if not isinstance(number, int):
        return number
    if number >= replicas.number:
        return reply
    error = LockUnavailable(replicas.shortfall(number))
    error.refused, error.passing = True, False
    return error


def is_read_only(error: object) -> bool:
    """Whether a server refused to write because it is a replica; older ones say so inside."""
    return isinstance(error, ReadOnlyError) or (
        isinstance(error, ResponseError) and "READONLY" in str(error)
    )
