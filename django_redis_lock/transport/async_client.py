"""Sends packed calls of asyncio tasks over one connection for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import monotonic
from typing import Any

import redis
from redis.exceptions import RedisError

from django_redis_lock.protocol.drivers import LAST_CALL, retain
from django_redis_lock.support.process import forget_after_fork, retain_inherited
from django_redis_lock.support.threads import InThread
from django_redis_lock.transport.clients import NOT_NOW, NOTHING, Connection, is_read_only
from django_redis_lock.transport.connections import connect
from django_redis_lock.transport.packing import Packed
from django_redis_lock.transport.redis_py import socket_of


class AsyncClient:
    """Sends calls of asyncio tasks over one connection for each loop, even if one is cancelled."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._connections: dict[asyncio.AbstractEventLoop, LoopConnection] = {}
        forget_after_fork(self)

    def after_fork(self) -> None:
        retain_inherited(self._connections)
        self._connections = {}

    def close(self) -> None:
        """Close the connections of all loops; calls in progress fail."""
        for loop, connection in self._connections.copy().items():
            self._connections.pop(loop, None)
            try:
                loop.call_soon_threadsafe(connection.hang_up)
            except RuntimeError:  # the loop was closed
                connection.close()

    def _connection(self) -> LoopConnection:
        """Return the connection of the running event loop; it may not be open yet."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None or connection.error is not None:
            for other, abandoned in self._connections.copy().items():
                if other.is_closed():
                    self._connections.pop(other, None)
                    abandoned.close()
            connection = LoopConnection(self._pool, partial(self._connections.pop, loop, None))
            self._connections[loop] = connection
        return connection

    async def call(self, packed: Packed) -> Any:
        connection = self._connection()
        await connection.opened()
        packed.sending()
        reply = connection.write(packed.pack())
        sent_at = monotonic()
        try:
            return await _answer(connection, packed, reply)
        except asyncio.CancelledError:
            had_time = packed.until > sent_at + LAST_CALL
            if had_time and monotonic() >= packed.until and connection.received_at < sent_at:
                connection.hang_up()  # other calls that wait for a reply are sent again
            raise

    def post(self, packed: Packed) -> None:
        """Send a call without waiting for its reply, which is dropped.

        It is written before any later call, or once the connection opens, and lost if that fails.
        """
        connection = self._connection()
        if connection.connection is not None:
            packed.sending()
            # With the source: the loop may be too busy to send it again if it is not known.
            reply = connection.write(packed.pack(with_source=True))
            outcome = _answer(connection, packed, reply)
        else:
            outcome = self.call(packed)
        retain(asyncio.ensure_future(outcome))


async def _answer(connection: LoopConnection, packed: Packed, reply: asyncio.Future[Any]) -> Any:
    answer = await reply
    steps = packed.completed(answer)
    try:
        command = next(steps)
        while True:
            command = steps.send(await connection.write(command))
    except StopIteration as stop:
        answer = stop.value
    if isinstance(answer, Exception):
        if is_read_only(answer):
            connection.hang_up()
        raise answer
    return answer


class LoopConnection:
    """A connection of one event loop, from when it is opened until it breaks.

    A task opens it, for which all callers wait: if it fails they all fail. A thread connects,
    because asyncio would look up the host in the loop's default executor, whose threads may all be
    waiting for a lock that the awaiting task holds.
    """

    def __init__(self, pool: redis.ConnectionPool, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._timeout: float | None = pool.connection_kwargs.get("socket_timeout")
        self.connection: Connection | None = None  # None until it is open, and after it broke
        self.error: Exception | None = None  # why it can't be used any more
        self._unsent = b""
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.received_at = 0.0  # monotonic
        self._ending = self._until_the_loop_ends()
        self._opening: asyncio.Task[None] | None = asyncio.ensure_future(self._open())

    async def opened(self) -> None:
        """Wait until calls can be written. Raises ``RedisError`` and ``OSError``."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._check()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)  # it may be raised in many tasks

    async def _open(self) -> None:
        try:
            # Loops don't announce their end, but ``shutdown_asyncgens`` closes the asynchronous
            # generators that were started in them.
            await anext(self._ending)
            connecting = InThread(partial(connect, self._pool))
            try:
                async with asyncio.timeout(self._timeout):
                    origin = await connecting.aresult()
                self._check()  # it may have been hung up meanwhile
                self._use(origin)
            except BaseException:  # the thread goes on
                connecting.when_done(partial(_disconnect, connecting))
                raise
        except TimeoutError:
            self._break(redis.exceptions.TimeoutError("Timeout connecting to the server"))
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._opening = None

    def _use(self, origin: Any) -> None:
        connection = Connection(origin)
        self._socket = socket_of(origin)
        self._socket.setblocking(False)
        try:
            self._loop.add_reader(self._socket, self._carry_out, self._read)
        except NotImplementedError:
            raise redis.exceptions.ConnectionError(
                f"{type(self._loop).__name__} has no add_reader(); use asyncio.SelectorEventLoop"
            ) from None
        self.connection = connection

    def _carry_out(self, callback: Callable[[], object]) -> None:
        """Call a function of the loop's; if it fails, the connection is in an unknown state."""
        try:
            callback()
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):
                raise

    async def _until_the_loop_ends(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._ended()
            self.hang_up()

    def write(self, command: bytes) -> asyncio.Future[Any]:
        """Send a command; return the future of its reply, which may be the server's error.

        It can't be cancelled in between. Raises ``RedisError`` and ``OSError``.
        """
        self._check()
        reply = self._loop.create_future()
        try:
            self._pending.append(reply)
            self._unsent += command
            self._send()
            if len(self._pending) == 1:
                self._expect()
        except BaseException as error:
            self._break(error)
            raise
        return reply

    def _send(self) -> None:
        """Send what the socket takes now, and the rest when it takes more."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except NOT_NOW:
            self._loop.add_writer(self._socket, self._carry_out, self._send_more)

    def _send_more(self) -> None:
        self._loop.remove_writer(self._socket)
        self._send()

    def _expect(self) -> None:
        """Give the server time for the next reply."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pending and self._timeout is not None:
            late = redis.exceptions.TimeoutError("Timeout reading from the server")
            self._timer = self._loop.call_later(self._timeout, self._break, late)

    def _read(self) -> None:
        while self.connection and (answer := self.connection.read_arrived()) is not NOTHING:
            self.received_at = monotonic()
            reply = self._pending[0]
            if not reply.done():  # else its task was cancelled
                reply.set_result(answer)
            self._pending.popleft()
            self._expect()

    def hang_up(self) -> None:
        self._break(redis.exceptions.ConnectionError("The connection was closed"))

    def _break(self, error: BaseException) -> None:
        """Close the connection and fail all pending replies; it can't be cancelled in between."""
        if not isinstance(error, RedisError | OSError):
            error = redis.exceptions.ConnectionError("The connection was closed while in use")
        if self.error is None:
            self.error = error
        self.close()
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # its task may be gone; asyncio would log that no one saw it
        self._expect()

    def close(self) -> None:
        """Close the connection, of a loop that may have been closed."""
        connection, self.connection = self.connection, None
        if connection is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            connection.close()


def _disconnect(connecting: InThread[Any]) -> None:
    with contextlib.suppress(RedisError, OSError):
        connecting.result().disconnect()
