"""Sends packed calls over connections of redis-py, with blocking calls or under asyncio."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from django_redis_lock.connections import disconnect_idle
from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.identity import forget_after_fork
from django_redis_lock.packing import Packed, Replicas


class BlockingClient:
    """Sends calls over the connections of a redis-py pool.

    It goes below ``Redis.execute_command``, and keeps one connection for up to a second between
    calls rather than taking it from the pool and checking it each time: together that is a third
    of what an uncontended call costs the client. Calls are safe to send twice, so a connection that
    went stale meanwhile costs another sending and nothing else.
    """

    KEEP = 1.0
    """Seconds for which a connection is used without returning to the pool."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._kept: list[tuple[Any, float]] = []
        self._may_keep = pool.max_connections >= 4
        # redis-py 5.2 wants to be told the command; later versions object to it.
        parameter = inspect.signature(pool.get_connection).parameters.get("command_name")
        told = parameter is not None and parameter.default is parameter.empty
        self._checkout_args = ("EVALSHA",) if told else ()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connection to the parent process."""
        self._kept = []

    def close(self) -> None:
        """Give the connection back to the pool."""
        while self._kept:
            self._pool.release(self._kept.pop()[0])

    def call(self, packed: Packed) -> Any:
        """Send a call and return its reply.

        Raises ``RedisError`` and ``OSError``, and ``LockUnavailable`` where too few replicas
        acknowledged it.
        """
        (reply,) = self.call_all([packed])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(self, batch: Sequence[Packed]) -> list[Any]:
        """Send calls in one go; return the reply, or the server's error, to each."""
        commands = [packed.pack() for packed in batch]
        try:
            return self._send(batch, commands)
        except (AttributeError, TypeError, ValueError) as error:
            # What redis-py's parsers raise where another thread closes the pool's connections,
            # as django-redis does after each request with DJANGO_REDIS_CLOSE_CONNECTION.
            raise redis.exceptions.ConnectionError(
                "The connection was closed while in use"
            ) from error

    def _send(self, batch: Sequence[Packed], commands: list[bytes]) -> list[Any]:
        connection, since = self._take()
        try:
            for packed in batch:
                packed.sending()
            connection.send_packed_command(commands)
            replies = [_reply(connection, packed.says_ok) for packed in batch]
            for number, packed in enumerate(batch):
                if isinstance(replies[number], NoScriptError):
                    connection.send_packed_command((packed.pack(with_source=True),))
                    replies[number] = _reply(connection)
                replicas = packed.awaited(replies[number])
                if replicas is not None:
                    connection.send_packed_command((replicas.command,))
                    replies[number] = _acknowledged(replies[number], replicas, _reply(connection))
        except BaseException:
            connection.disconnect()  # its reply may still come
            self._pool.release(connection)
            raise
        failed = [reply for reply in replies if isinstance(reply, Exception)]
        if any(is_read_only(error) for error in failed):
            connection.disconnect()  # a master that was demoted; the next one may be the new master
        if failed:
            self._pool.release(connection)
        else:
            self._keep(connection, since)
        return replies

    def _keep(self, connection: Any, since: float) -> None:
        if self._may_keep and not self._kept:
            self._kept.append((connection, since))
        else:
            self._pool.release(connection)

    def _take(self) -> tuple[Any, float]:
        now = monotonic()
        try:
            connection, since = self._kept.pop()
        except IndexError:
            pass
        else:
            if now - since < self.KEEP:
                return connection, since
            self._pool.release(connection)
        try:
            return self._pool.get_connection(*self._checkout_args), now
        except (RedisError, OSError):
            raise
        except BaseException:
            # A signal's exception that met redis-py between a question of its handshake and the
            # answer: the connection is in the pool again, and the answer would be taken for ours.
            disconnect_idle(self._pool)
            raise


class AsyncClient:
    """Sends calls of any number of asyncio tasks over one connection for each event loop.

    Calls are written as they come and their replies are read in order. A task that is cancelled
    only stops listening for its reply, so the connection is never out of step.
    """

    def __init__(
        self,
        make_connection: Callable[[], Any],
        timeout: float | None,
        locate: Callable[[], tuple[str, int]] | None = None,
    ) -> None:
        self._make_connection = make_connection
        self._timeout = timeout
        self._locate = locate
        self._wires: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._wires = weakref.WeakKeyDictionary()

    wire_class: type[Wire]

    async def wire(self) -> Any:
        """Return the connection of the running event loop."""
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None:
            connection = self._make_connection()
            wire = self._wires[loop] = self.wire_class(connection, self._timeout, self._locate)
            await wire.close_with_loop(lambda: self._wires.pop(loop, None))
        return wire

    async def call(self, packed: Packed) -> Any:
        """Send a call and return its reply. Raises as ``BlockingClient.call`` does."""
        wire = await self.wire()
        try:
            try:
                reply, on = await wire.call(packed.pack(), packed.sending)
            except NoScriptError:
                reply, on = await wire.call(packed.pack(with_source=True), packed.sending)
            replicas = packed.awaited(reply)
            if replicas is not None:
                acknowledged, _ = await wire.call(replicas.command, only_on=on)
                reply = _acknowledged(reply, replicas, acknowledged)
        except ResponseError as error:
            if is_read_only(error):
                wire.hang_up()
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply


class Wire:
    """One connection of one event loop."""

    def __init__(
        self,
        connection: Any,
        timeout: float | None,
        locate: Callable[[], tuple[str, int]] | None,
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._locate = locate
        self._connects = 0  # how often it was connected
        self._broken = False  # whether the next call has to connect anew
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._writing = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._keeper: AsyncIterator[None] | None = None

    async def close_with_loop(self, closed: Callable[[], object]) -> None:
        """Have the connection closed when the loop shuts down.

        Loops don't tell when they end, but they close the asynchronous generators that they have
        seen begin, and they do so while connections can still be closed in good order.
        """

        async def keeper() -> AsyncIterator[None]:
            try:
                yield
            finally:
                closed()
                await self._connection.disconnect()

        self._keeper = keeper()
        await anext(self._keeper)

    async def call(
        self,
        command: bytes,
        sending: Callable[[], None] | None = None,
        *,
        only_on: int | None = None,
    ) -> tuple[Any, int]:
        """Send a command; return its reply, and which connecting of the wire it was sent after.

        With ``only_on`` it is sent only where that is still the same one.
        """
        reply = asyncio.get_running_loop().create_future()
        async with self._writing:
            if only_on is not None and (self._broken or only_on != self._connects):
                raise redis.exceptions.ConnectionError("The connection was closed while in use")
            if sending is not None:
                sending()
            try:
                async with asyncio.timeout(self._timeout):
                    if self._broken or not self._connection.is_connected:
                        await self._connect_anew()
                    on = self._connects
                    self._pending.append(reply)
                    await self._connection.send_packed_command((command,), check_health=False)
            except BaseException as error:
                self._break(error)
                if isinstance(error, TimeoutError):
                    raise redis.exceptions.TimeoutError("Timeout connecting or sending") from error
                raise
            if self._reader is None:
                self._reader = asyncio.ensure_future(self._read())
        return await reply, on

    async def _connect_anew(self) -> None:
        reader = self._reader
        if reader is not None:  # of the last connection; its end would close the next one
            reader.cancel()
            await asyncio.wait([reader])
            self._reader = None  # one that had not begun yet could not say so itself
        await self._connection.disconnect(nowait=True)
        self._connects += 1
        await self._connect()
        self._broken = False  # whatever broke meanwhile was the last connection

    async def _connect(self) -> None:
        if self._locate is not None:
            connection = self._connection
            connection.host, connection.port = await asyncio.to_thread(self._locate)
        await self._connection.connect()

    def hang_up(self) -> None:
        """Use the connection no more; the next call opens another."""
        self._break(redis.exceptions.ConnectionError("The server became read-only"))

    def _break(self, error: BaseException) -> None:
        """Tell everyone who waits for a reply that it won't come.

        It awaits nothing, so that no cancellation can come between and leave somebody waiting.
        """
        self._broken = True
        if not isinstance(error, RedisError | OSError):
            error = redis.exceptions.ConnectionError("The connection was closed while in use")
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # nobody may be left to see it

    async def _read(self) -> None:
        try:
            while self._pending:
                async with asyncio.timeout(self._timeout):
                    answer = await self._answer()
                if self._broken:
                    return  # all have been told
                reply = self._pending.popleft()
                if reply.done():
                    continue  # whoever asked was cancelled
                if isinstance(answer, ResponseError):
                    reply.set_exception(answer)
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


AsyncClient.wire_class = Wire


def _reply(connection: Any, says_ok: bool = False) -> Any:
    """Read a reply; the server's error is returned rather than raised.

    Raises ``RedisError`` for one that the call does not have, but the handshake of a connection.
    """
    try:
        reply = connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
    if (reply == b"OK" and not says_ok) or isinstance(reply, dict):
        raise redis.exceptions.ConnectionError("The connection is out of step")
    return reply


def _acknowledged(reply: Any, replicas: Replicas, acknowledged: Any) -> Any:
    """Return the reply, or why it does not count."""
    if not isinstance(acknowledged, int):
        return acknowledged
    if acknowledged >= replicas.number:
        return reply
    error = LockUnavailable(replicas.shortfall(acknowledged))
    error.refused = True
    return error


def is_read_only(error: object) -> bool:
    """Whether a server refused to write because it is a replica; older ones say so inside."""
    return isinstance(error, ReadOnlyError) or (
        isinstance(error, ResponseError) and "READONLY" in str(error)
    )
