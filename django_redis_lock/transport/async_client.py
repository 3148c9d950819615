"""Sends packed calls of asyncio tasks over one connection for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from django_redis_lock.support.process import forget_after_fork, keep_inherited
from django_redis_lock.transport.clients import acknowledged, is_read_only
from django_redis_lock.transport.packing import Packed


class AsyncClient:
    """Sends calls of any number of asyncio tasks over one connection for each event loop.

    Calls are written as they come and their replies are read in order. A task that is cancelled
    only stops listening for its reply, so the connection is never out of step.
    """

    def __init__(self, make_connection: Callable[[], Any], timeout: float | None) -> None:
        self._make_connection = make_connection
        self._timeout = timeout
        self._wires: dict[asyncio.AbstractEventLoop, Wire] = {}
        self._posts: set[asyncio.Future[None]] = set()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        keep_inherited(self._wires)
        self._wires = {}
        self._posts = set()

    def close(self) -> None:
        """Close the connections of all loops; whoever waits for an answer is told so."""
        for loop, wire in self._wires.copy().items():
            self._wires.pop(loop, None)
            try:
                loop.call_soon_threadsafe(wire.hang_up)
            except RuntimeError:  # the loop was closed
                wire.abandon()

    def _wire(self) -> Wire:
        """Return the connection of the running event loop; it may not be open yet."""
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None or wire.broken:
            for former, abandoned in self._wires.copy().items():
                if former.is_closed():
                    self._wires.pop(former, None)
                    abandoned.abandon()
            wire = Wire(self._make_connection(), self._timeout, self._forget)
            self._wires[loop] = wire
        return wire

    def _forget(self, wire: Wire) -> None:
        """Use a connection no more, for its loop shuts down."""
        loop = asyncio.get_running_loop()
        if self._wires.get(loop) is wire:
            del self._wires[loop]

    async def call(self, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        wire = self._wire()
        await wire.opened()
        return await self._outcome(wire, packed, wire.write(packed.pack(), packed.sending))

    def post(self, packed: Packed) -> None:
        """Send a call and don't wait for its reply, which nobody will see.

        Where the connection is open it is written at once, before any later call. Otherwise it
        goes out as soon as it is, and is lost where it can't be opened.
        """
        wire = self._wire()
        if wire.is_open:
            # With its source: the loop may be busy when the server says that it does not know it.
            reply = wire.write(packed.pack(with_source=True), packed.sending)
            outcome = self._outcome(wire, packed, reply)
        else:
            outcome = self.call(packed)
        task = asyncio.ensure_future(_ignored(outcome))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _outcome(self, wire: Wire, packed: Packed, reply: asyncio.Future[Any]) -> Any:
        """Return the reply to a call, once its script is known and its replicas have it."""
        try:
            try:
                answer = await reply
            except NoScriptError:
                answer = await wire.write(packed.pack(with_source=True), packed.sending)
            replicas = packed.awaited(answer)
            if replicas is not None:
                answer = acknowledged(answer, replicas, await wire.write(replicas.command))
        except ResponseError as error:
            if is_read_only(error):
                wire.hang_up()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


async def _ignored(outcome: Any) -> None:
    with contextlib.suppress(Exception):
        await outcome


class Wire:
    """One connection of one event loop, from when it is opened until it breaks.

    It is opened in a task of its own, for all who come meanwhile: they are all told where that
    fails, and none of them takes it along who is cancelled.
    """

    def __init__(
        self, connection: Any, timeout: float | None, ended: Callable[[Wire], object]
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._ended = ended
        self._error: Exception | None = None  # why it is broken
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._keeper = self._until_the_loop_ends()
        self._opening: asyncio.Task[None] | None = asyncio.ensure_future(self._open())

    @property
    def broken(self) -> bool:
        """Whether it is of no use any more."""
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
            raise self._error.with_traceback(None)  # which may be raised in many tasks

    async def _open(self) -> None:
        try:
            # Loops don't tell when they end, but they close the asynchronous generators that they
            # have seen begin, while connections can still be closed in good order.
            await anext(self._keeper)
            async with asyncio.timeout(self._timeout):
                await self._connection.connect()
            if self._error is not None:  # given up meanwhile
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

    def write(
        self, command: bytes, sending: Callable[[], None] | None = None
    ) -> asyncio.Future[Any]:
        """Send a command; return the future of its reply. Raises ``RedisError`` and ``OSError``.

        It waits for nothing, so that no cancellation can come between a command and its reply.
        """
        self._check()
        if sending is not None:
            sending()
        reply = asyncio.get_running_loop().create_future()
        # Not by redis-py's coroutine, for that closes the connection when its task is cancelled.
        self._connection._writer.write(command)
        self._pending.append(reply)
        if self._reader is None:
            self._reader = asyncio.ensure_future(self._read())
        return reply

    def hang_up(self) -> None:
        """Use the connection no more; the next call opens another."""
        self._break(redis.exceptions.ConnectionError("The connection was given up"))

    def _break(self, error: BaseException) -> None:
        """Close the connection, and tell everyone who waits for a reply that it won't come.

        It awaits nothing, so that no cancellation can come between and leave somebody waiting.
        """
        if not isinstance(error, RedisError | OSError):
            error = redis.exceptions.ConnectionError("The connection was closed while in use")
        if self._error is None:
            self._error = error
        writer = self._take_writer()
        if writer is not None:
            writer.transport.abort()
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # nobody may be left to see it

    def _take_writer(self) -> Any:
        connection = self._connection
        writer = connection._writer
        connection._reader = connection._writer = None  # redis-py takes it for disconnected
        return writer

    def abandon(self) -> None:
        """Close the socket after the loop was closed, which asyncio has no way to do."""
        writer = self._take_writer()
        transport: Any = writer and writer.transport
        if hasattr(transport, "_sock"):  # others, as of TLS, close it when they are collected
            plain, transport._sock = transport._sock, None
            transport._closing = True
            plain.close()

    async def _read(self) -> None:
        try:
            while self._pending:
                async with asyncio.timeout(self._timeout):
                    answer = await self._answer()
                if self._error is not None:
                    return  # all have been told
                reply = self._pending.popleft()
                if reply.done():
                    continue  # whoever asked was cancelled
                if isinstance(answer, ResponseError):
                    reply.set_exception(answer)
                    reply.exception()
                else:
                    reply.set_result(answer)
        except TimeoutError:
            self._break(redis.exceptions.TimeoutError("Timeout reading from the server"))
        except BaseException as error:
            self._break(error)
        finally:
            self._reader = None

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
