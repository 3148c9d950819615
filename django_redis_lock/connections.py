"""Connections of redis-py, and the sending of packed calls over them."""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 - early, see below
import inspect
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.identity import forget_after_fork
from django_redis_lock.scripts import Command, Script

# ``encodings.idna`` is what Python imports when it first looks up a host. An exception from a
# signal handler (Celery's soft time limit) in the middle of an import can leave the lock of that
# import taken for ever, and then every thread that connects hangs. So it is imported early.

URL_DEFAULTS = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0, "socket_keepalive": True}
"""Used where LOCATION is a URL, unless its query says otherwise; seconds."""


class Packed:
    """A call to a script, ready to be sent."""

    __slots__ = ("args", "keys", "script", "sending")

    def __init__(
        self,
        script: Script | Command,
        keys: Sequence[str],
        args: Sequence[str],
        sending: Callable[[], None],
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.sending = sending

    def pack(self, *, with_source: bool = False) -> bytes:
        """Return the bytes of the command."""
        return self.script.pack(self.keys, self.args, with_source=with_source)


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
        """Send a call and return its reply. Raises ``RedisError`` and ``OSError``."""
        try:
            return self._send(packed)
        except (AttributeError, TypeError, ValueError) as error:
            # What redis-py's parsers raise where another thread closes the pool's connections,
            # as django-redis does after each request with DJANGO_REDIS_CLOSE_CONNECTION.
            raise redis.exceptions.ConnectionError(
                "The connection was closed while in use"
            ) from error

    def _send(self, packed: Packed) -> Any:
        command = packed.pack()
        connection, since = self._take()
        try:
            packed.sending()
            connection.send_packed_command((command,))
            try:
                reply = connection.read_response(disable_decoding=True)
            except NoScriptError:
                connection.send_packed_command((packed.pack(with_source=True),))
                reply = connection.read_response(disable_decoding=True)
        except ResponseError:
            self._pool.release(connection)
            raise
        except BaseException:
            connection.disconnect()  # its reply may still come
            self._pool.release(connection)
            raise
        self._keep(connection, since)
        return reply

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
        return self._pool.get_connection(*self._checkout_args), now


class AsyncClient:
    """Sends calls of any number of asyncio tasks over one connection for each event loop.

    Calls are written as they come and their replies are read in order. A task that is cancelled
    only stops listening for its reply, so the connection is never out of step.
    """

    def __init__(self, make_connection: Callable[[], Any], timeout: float | None) -> None:
        self._make_connection = make_connection
        self._timeout = timeout
        self._wires: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent process."""
        self._wires = weakref.WeakKeyDictionary()

    def open_wire(self, connection: Any, timeout: float | None) -> _Wire:
        """Return what carries the calls of one event loop."""
        return _Wire(connection, timeout)

    async def wire(self) -> Any:
        """Return the connection of the running event loop."""
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None:
            wire = self._wires[loop] = self.open_wire(self._make_connection(), self._timeout)
            await wire.close_with_loop(lambda: self._wires.pop(loop, None))
        return wire

    async def call(self, packed: Packed) -> Any:
        """Send a call and return its reply. Raises ``RedisError`` and ``OSError``."""
        wire = await self.wire()
        try:
            return await wire.call(packed.pack(), packed.sending)
        except NoScriptError:
            return await wire.call(packed.pack(with_source=True), packed.sending)


class _Wire:
    """One connection of one event loop."""

    def __init__(self, connection: Any, timeout: float | None) -> None:
        self._connection = connection
        self._timeout = timeout
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

    async def call(self, command: bytes, sending: Callable[[], None]) -> Any:
        reply = asyncio.get_running_loop().create_future()
        async with self._writing:
            sending()
            try:
                async with asyncio.timeout(self._timeout):
                    if not self._connection.is_connected:
                        await self._connection.connect()
                    self._pending.append(reply)
                    await self._connection.send_packed_command((command,), check_health=False)
            except BaseException as error:
                await self._connection.disconnect(nowait=True)
                self._fail(error)
                if isinstance(error, TimeoutError):
                    raise redis.exceptions.TimeoutError("Timeout connecting or sending") from error
                raise
            if self._reader is None:
                self._reader = asyncio.ensure_future(self._read())
        return await reply

    async def _read(self) -> None:
        try:
            while self._pending:
                async with asyncio.timeout(self._timeout):
                    answer = await self._answer()
                reply = self._pending.popleft()
                if reply.done():
                    continue  # whoever asked was cancelled
                if isinstance(answer, ResponseError):
                    reply.set_exception(answer)
                else:
                    reply.set_result(answer)
        except TimeoutError:
            await self._give_up(redis.exceptions.TimeoutError("Timeout reading from the server"))
        except BaseException as error:
            await self._give_up(error)
        finally:
            self._reader = None

    async def _give_up(self, error: BaseException) -> None:
        async with self._writing:  # nobody opens the next connection before this one is gone
            self._reader = None
            self._fail(error)
            await self._connection.disconnect(nowait=True)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    def _fail(self, error: BaseException) -> None:
        """Tell everyone who waits for a reply that it won't come."""
        if not isinstance(error, RedisError | OSError):
            error = redis.exceptions.ConnectionError("The connection was closed while in use")
        while self._pending:
            reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # nobody may be left to see it


def pool_from_url(url: str) -> redis.ConnectionPool:
    """Return a pool for a ``redis://``, ``rediss://`` or ``unix://`` URL."""
    defaults = dict(URL_DEFAULTS)
    if url.startswith("unix:"):
        del defaults["socket_keepalive"]
    return redis.ConnectionPool.from_url(url, **defaults)


def listening_connection(pool: redis.ConnectionPool) -> Any:
    """Return a connection like those of the pool, outside of it, for subscribing."""
    wanted = {**pool.connection_kwargs, "socket_keepalive": True}
    kwargs = _portable(wanted, pool.connection_class)
    kwargs["protocol"] = 2
    with contextlib.suppress(KeyError):
        kwargs["retry"] = pool.connection_kwargs["retry"]
    return pool.connection_class(**kwargs)


def asyncio_connection(pool: redis.ConnectionPool) -> Any:
    """Return an asyncio connection to where the pool's connections go."""
    for blocking, awaiting in (
        (redis.SSLConnection, redis.asyncio.SSLConnection),
        (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
        (redis.Connection, redis.asyncio.Connection),
    ):
        if issubclass(pool.connection_class, blocking):
            kwargs = _portable(pool.connection_kwargs, awaiting)
            kwargs.update(protocol=2, socket_timeout=None)  # replies are timed by the reader
            return awaiting(**kwargs)
    raise LockUnavailable(
        f"No asyncio connection is known for {pool.connection_class.__name__}; "
        "use the blocking methods, or a redis://, rediss:// or unix:// URL as LOCATION."
    )


_PLAIN = frozenset(
    {
        *("host", "port", "path", "db", "username", "password", "credential_provider"),
        *("client_name", "encoding", "encoding_errors"),
        *("socket_timeout", "socket_connect_timeout", "socket_type"),
        *("socket_keepalive", "socket_keepalive_options"),
    }
)


def _portable(kwargs: dict[str, Any], connection_class: Any) -> dict[str, Any]:
    """Return the arguments that say where and as whom to connect, as far as the class takes them.

    What redis-py adds for its own pools (parsers, maintenance handlers, retries) stays behind.
    """
    known: set[str] = set()
    for kind in connection_class.__mro__:
        if "__init__" in vars(kind):
            known |= inspect.signature(kind.__init__).parameters.keys()
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _PLAIN or key.startswith("ssl_")) and key in known
    }
