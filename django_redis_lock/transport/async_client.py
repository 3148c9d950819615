"""Sends packed calls of asyncio tasks over one connection for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from django_redis_lock.support.process import forget_after_fork, retain_inherited
from django_redis_lock.transport import redis_py
from django_redis_lock.transport.clients import is_read_only
from django_redis_lock.transport.packing import Packed


class AsyncClient:
    """Sends calls of any number of asyncio tasks over one connection for each event loop.

    Calls are written as they come, and their replies are read in order. A cancelled task only stops
    waiting for its reply, so the connection never gets out of step.
    """

    def __init__(self, make_connection: Callable[[], Any], timeout: float | None) -> None:
        self._make_connection = make_connection
        self._timeout = timeout
        self._connections: dict[asyncio.AbstractEventLoop, LoopConnection] = {}
        self._posts: set[asyncio.Future[None]] = set()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        retain_inherited(self._connections)
        self._connections = {}
        self._posts = set()

    def close(self) -> None:
        """Close the connections of all loops; calls in progress fail."""
        for loop, connection in self._connections.copy().items():
            self._connections.pop(loop, None)
            try:
                loop.call_soon_threadsafe(connection.hang_up)
            except RuntimeError:  # the loop was closed
                connection.abandon()

    def _connection(self) -> LoopConnection:
        """Return the connection of the running event loop; it may not be open yet."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None or connection.broken:
            for other, abandoned in self._connections.copy().items():
                if other.is_closed():
                    self._connections.pop(other, None)
                    abandoned.abandon()
            connection = LoopConnection(self._make_connection(), self._timeout, self._forget)
            self._connections[loop] = connection
        return connection

    def _forget(self, connection: LoopConnection) -> None:
        """Drop the connection of a loop that shuts down."""
        loop = asyncio.get_running_loop()
        if self._connections.get(loop) is connection:
            del self._connections[loop]

    async def call(self, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        connection = self._connection()
        await connection.opened()
        packed.sending()
        reply = connection.write(packed.pack())
        sent_at = monotonic()
        try:
            return await _answer(connection, packed, reply)
        except asyncio.CancelledError:
            if monotonic() >= packed.until and connection.received_at < sent_at:
                connection.hang_up()  # other calls that wait for a reply are sent again
            raise

    def post(self, packed: Packed) -> None:
        """Send a call without waiting for its reply, which is dropped.

        If the connection is open the call is written at once, before any later one. Otherwise it is
        sent as soon as the connection opens, and lost if that fails.
        """
        connection = self._connection()
        if connection.is_open:
            packed.sending()
            # With the source: the loop may be too busy to send it again if it is not known.
            reply = connection.write(packed.pack(with_source=True))
            outcome = _answer(connection, packed, reply)
        else:
            outcome = self.call(packed)
        task = asyncio.ensure_future(_ignored(outcome))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)


async def _answer(connection: LoopConnection, packed: Packed, reply: asyncio.Future[Any]) -> Any:
    """Return the final answer to a call, given its first reply."""
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


async def _ignored(outcome: Any) -> None:
    with contextlib.suppress(Exception):
        await outcome


class LoopConnection:
    """A connection of one event loop, from when it is opened until it breaks.

    It is opened in a task of its own that all callers wait for: cancelling one of them does not
    cancel it, and if it fails they all fail.
    """

    def __init__(
        self, connection: Any, timeout: float | None, ended: Callable[[LoopConnection], object]
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._ended = ended
        self._error: Exception | None = None  # why it is broken
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._reader: asyncio.Task[None] | None = None
        self.received_at = 0.0  # monotonic
        self._ending = self._until_the_loop_ends()
        self._opening: asyncio.Task[None] | None = asyncio.ensure_future(self._open())

    @property
    def broken(self) -> bool:
        """Whether it can't be used any more."""
        return self._error is not None

    @property
    def is_open(self) -> bool:
        """Whether calls can be written."""
        return self._opening is None and self._error is None

    async def opened(self) -> None:
        """Wait until calls can be written. Raises ``RedisError`` and ``OSError``."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # it may be raised in many tasks

    async def _open(self) -> None:
        try:
            # Loops don't announce their end. But ``shutdown_asyncgens`` closes the asynchronous
            # generators that were started in them, while connections can still be closed properly.
            await anext(self._ending)
            async with asyncio.timeout(self._timeout):
                await self._connection.connect()
            if self._error is not None:  # hung up meanwhile
                await self._connection.disconnect()
        except TimeoutError:
            self._break(redis.exceptions.TimeoutError("Timeout connecting to the server"))
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._opening = None

    async def _until_the_loop_ends(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._ended(self)
            await self._connection.disconnect()

    def write(self, command: bytes) -> asyncio.Future[Any]:
        """Send a command; return the future of its reply, which may be the server's error.

        It awaits nothing, so a cancellation can't separate a command from its reply. Raises
        ``RedisError`` and ``OSError``.
        """
        self._check()
        reply = asyncio.get_running_loop().create_future()
        redis_py.write(self._connection, command)
        self._pending.append(reply)
        if self._reader is None:
            self._reader = asyncio.ensure_future(self._read())
        return reply

    def hang_up(self) -> None:
        """Close the connection; the next call opens another."""
        self._break(redis.exceptions.ConnectionError("The connection was given up"))

    def _break(self, error: BaseException) -> None:
        """Close the connection and fail all pending replies.

        It awaits nothing, so a cancellation can't interrupt it and leave a task waiting.
        """
        if not isinstance(error, RedisError | OSError):
            error = redis.exceptions.ConnectionError("The connection was closed while in use")
        if self._error is None:
            self._error = error
        writer = redis_py.take_writer(self._connection)
        if writer is not None:
            writer.transport.abort()
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # its task may be gone; asyncio would log that no one saw it

    def abandon(self) -> None:
        """Close the connection after its loop was closed."""
        redis_py.close_without_loop(redis_py.take_writer(self._connection))

    async def _read(self) -> None:
        try:
            while self._pending:
                async with asyncio.timeout(self._timeout):
                    answer = await self._reply()
                self.received_at = monotonic()
                if self._error is not None:
                    return  # all replies have failed already
                reply = self._pending.popleft()
                if not reply.done():  # else its task was cancelled
                    reply.set_result(answer)
        except TimeoutError:
            self._break(redis.exceptions.TimeoutError("Timeout reading from the server"))
        except BaseException as error:
            self._break(error)
        finally:
            self._reader = None

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return redis_py.cluster_error(error)
