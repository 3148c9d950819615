"""Sends packed calls over the connections of a pool, blocking until they are answered."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from os import getpid
from time import monotonic
from typing import Any

import redis
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from django_redis_lock.support.process import forget_after_fork
from django_redis_lock.transport.checkout import Checkout
from django_redis_lock.transport.connections import leave_to_parent
from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.redis_py import BROKEN, checkout_of, disconnect_idle
from django_redis_lock.transport.threads import shielded


class BlockingClient:
    """Sends calls over the connections of a redis-py pool.

    It bypasses ``Redis.execute_command``, and keeps connections for up to a second instead of
    returning them to the pool after each call, which would check them each time. Together that
    saves a third of what an uncontended call costs the client. Calls are safe to send twice, so the
    worst that a stale connection costs is a second sending. A broken connection is kept as well;
    the next call reconnects it.

    A signal handler can raise an exception anywhere. In the pool's own code that would lose a
    connection for good, so the pool is only used where no signal handler runs. Elsewhere the
    exception drops the ``Checkout``, whose trace hands its connection to the next call.
    """

    KEEP = 1.0
    """Seconds for which a connection is used before it goes back to the pool."""
    MOST_KEPT = 8
    """How many connections are kept at most; a quarter of those of a small pool."""
    MOST_OVERDUE = 20
    """How many connections may be opening still although their callers have given up."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._get_connection = checkout_of(pool)
        self._kept: list[Checkout] = []
        self._traces: dict[int, _Trace] = {}  # of all connections taken from the pool
        self._strays: list[_Trace] = []  # of those whose checkout was dropped
        self._opening: dict[object, float] = {}  # when (monotonic) their callers give up
        self._most_kept = min(self.MOST_KEPT, pool.max_connections // 4)
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave all connections to the parent process, even one that this child was reading."""
        for trace in [*self._traces.values()]:
            leave_to_parent(trace.connection)
        self._traces, self._strays, self._kept = {}, [], []
        self._opening = {}

    def close(self) -> None:
        """Return all connections to the pool."""
        while self._kept:
            shielded(partial(self._give_back, self._kept.pop()))
        while self._strays:
            shielded(self._give_back_stray)

    def call(self, packed: Packed) -> Any:
        """Send a call and return its reply.

        Raises ``RedisError`` and ``OSError``, and ``LockUnavailable`` if too few replicas
        acknowledged it.
        """
        command = packed.pack()
        checkout = self._take(packed.until)
        try:
            if packed.until != math.inf:
                checkout.limit(packed.until)
            packed.sending()
            checkout.send(command)
            if checkout.due:
                checkout.read_due()
            reply = checkout.read(packed.says_ok)
            if packed.replicas is not None or isinstance(reply, ResponseError):
                reply = _completed(checkout, packed, reply)
                _leave_replica(checkout, [reply])
            if packed.until != math.inf:
                checkout.unlimit()
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
            if checkout.due:
                checkout.read_due()
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
        """Send a call without waiting for its reply, which is dropped.

        It leaves at once, or within about 200 ms if it can share a packet with another call. Raises
        ``RedisError`` and ``OSError``. No error does not mean that it arrived: it is lost if the
        connection breaks afterwards.
        """
        checkout = self._take(packed.until)
        try:
            packed.sending()
            checkout.post(packed)
        except BaseException as error:
            self._broke(checkout, error)
            raise
        self._keep(checkout)

    def _broke(self, checkout: Checkout, error: BaseException) -> None:
        """Close a connection on which a reply may still come."""
        checkout.disconnect()
        if isinstance(error, redis.exceptions.ConnectionError | ConnectionError):
            self._close_kept()
        self._keep(checkout)
        if isinstance(error, AttributeError | TypeError | ValueError):
            raise redis.exceptions.ConnectionError(
                "The connection was closed while in use"
            ) from error

    def _close_kept(self) -> None:
        """Close the connections that nobody uses, which the server has probably closed as well.

        Otherwise each of them could cost a call one of its few tries.
        """
        closed = []
        with contextlib.suppress(IndexError):
            while True:
                closed.append(self._kept.pop())
                closed[-1].disconnect()
        self._kept.extend(closed)

    def _keep(self, checkout: Checkout) -> None:
        if len(self._kept) < self._most_kept:
            self._kept.append(checkout)
        else:
            shielded(partial(self._give_back, checkout))

    def _give_back(self, checkout: Checkout) -> None:
        """Return a connection to the pool, with no reply left on it."""
        if checkout.due:
            try:
                checkout.settle()
            except BROKEN:
                checkout.disconnect()
            except BaseException:
                checkout.disconnect()
                raise
        if checkout.has_surplus:
            checkout.disconnect()
        del self._traces[id(checkout.connection)]
        self._pool.release(checkout.connection)

    def _give_back_stray(self) -> None:
        checkout = self._traced(self._strays.pop().connection)
        checkout.disconnect()
        self._give_back(checkout)

    def _take(self, until: float = math.inf) -> Checkout:
        if self._strays:
            return self._opened(self._recover, until)
        kept: Checkout | None = None
        try:
            kept = self._kept.pop()
        except IndexError:
            pass
        else:
            if monotonic() - kept.since < self.KEEP:
                return kept if kept.is_open else self._opened(kept.open, until)
        return self._opened(partial(self._check_out, kept), until)

    def _opened(self, take: Callable[[], Checkout], until: float) -> Checkout:
        """Take a connection, which may have to be opened; give up ``until`` (monotonic).

        Connecting can't be interrupted: it goes on in its thread, and a connection that is opened
        too late is used by a later call.
        """
        if until == math.inf:
            return shielded(take)
        now = monotonic()
        if sum(end < now for end in [*self._opening.values()]) >= self.MOST_OVERDUE:
            raise redis.exceptions.TimeoutError("Earlier attempts to connect were not answered yet")
        attempt = object()
        self._opening[attempt] = until

        def attempted() -> Checkout:
            try:
                return take()
            finally:
                self._opening.pop(attempt, None)

        return shielded(attempted, until)

    def _check_out(self, former: Checkout | None) -> Checkout:
        """Take a connection from the pool, after returning the former one."""
        if former is not None:
            self._give_back(former)
        try:
            connection = self._get_connection()
        except (RedisError, OSError):
            raise
        except BaseException:
            # The handshake was interrupted between a command and its reply. The connection is in
            # the pool again, where that reply would be taken for one of ours.
            disconnect_idle(self._pool)
            raise
        if connection.pid != getpid():
            leave_to_parent(connection)  # forked while it connected; it will reconnect
        return self._traced(connection)

    def _traced(self, connection: Any) -> Checkout:
        checkout = Checkout(connection)
        # The callback is not Python code: there an exception from a signal handler would be lost.
        trace = self._traces[id(connection)] = _Trace(checkout, self._strays.append)
        trace.connection = connection
        return checkout

    def _recover(self) -> Checkout:
        """Take a connection whose checkout was dropped; a reply may be on its way."""
        try:
            connection = self._strays.pop().connection
        except IndexError:  # another thread was quicker
            return self._check_out(None)
        return self._traced(connection).open()


class _Trace(weakref.ref[Checkout]):
    """A weak reference to a checkout that keeps its connection."""

    __slots__ = ("connection",)
    connection: Any


def _completed(checkout: Checkout, packed: Packed, reply: Any) -> Any:
    """Return the final answer to a call, given its first reply."""
    steps = packed.completed(reply)
    try:
        command = next(steps)
        while True:
            if packed.until != math.inf:
                checkout.limit(packed.until)
            checkout.send(command)
            command = steps.send(checkout.read())
    except StopIteration as stop:
        return stop.value


def _leave_replica(checkout: Checkout, replies: Sequence[Any]) -> None:
    """Close a connection to a server that is no longer the master."""
    if any(map(is_read_only, replies)):
        checkout.disconnect()


def is_read_only(error: object) -> bool:
    """Whether a server refused to write because it is a replica."""
    # Older servers report it inside the error of the script.
    return isinstance(error, ReadOnlyError) or (
        isinstance(error, ResponseError) and "READONLY" in str(error)
    )
