"""Connections of redis-py: those of a pool, and others to where the pool's go."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - early, see below
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.sentinel import SentinelConnectionPool

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.transport.redis_py import OverSocket, parameters_of
from django_redis_lock.transport.threads import run_in_thread

# ``encodings.idna`` is what Python imports when it first looks up a host. An exception from a
# signal handler (Celery's soft time limit) in the middle of an import can leave the lock of that
# import taken for ever, and then every thread that connects hangs. So it is imported early.

URL_DEFAULTS = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "protocol": 2,  # RESP3 would bring nothing but two more round trips for each new connection
}
"""Used where LOCATION is a URL, unless its query says otherwise; seconds."""


def master_of(pool: redis.ConnectionPool) -> Callable[[], tuple[str, int]] | None:
    """Return what asks the sentinels of a pool where the master is; ``None`` without sentinels."""
    if not isinstance(pool, SentinelConnectionPool):
        return None

    def ask() -> tuple[str, int]:
        found: tuple[str, int] = pool.sentinel_manager.discover_master(pool.service_name)
        return found

    return ask


def pool_from_url(url: str) -> redis.ConnectionPool:
    """Return a pool for a ``redis://``, ``rediss://`` or ``unix://`` URL."""
    defaults: dict[str, Any] = dict(URL_DEFAULTS)
    if url.startswith("unix:"):
        del defaults["socket_keepalive"]
    return redis.ConnectionPool.from_url(url, **defaults)


def leave_to_parent(connection: Any) -> None:
    """Close a connection in a forked child alone, where it was made by the parent.

    Whoever is in the middle of reading it finds it closed, rather than take the parent's replies.
    """
    with contextlib.suppress(Exception):  # redis-py's, for it was forked at any moment
        connection.disconnect()


def listening_connection(pool: redis.ConnectionPool) -> Any:
    """Return a connection like those of the pool, outside of it, for subscribing."""
    wanted = {**pool.connection_kwargs, "socket_keepalive": True}
    connection_class, locate = pool.connection_class, master_of(pool)
    if locate is not None:
        ssl = issubclass(connection_class, redis.SSLConnection)
        connection_class = redis.SSLConnection if ssl else redis.Connection
        wanted["host"], wanted["port"] = locate()
    kwargs = _portable(wanted, connection_class)
    kwargs["protocol"] = 2
    with contextlib.suppress(KeyError):
        kwargs["retry"] = pool.connection_kwargs["retry"]
    return connection_class(**kwargs)


def asyncio_connection(pool: redis.ConnectionPool) -> Any:
    """Return an asyncio connection to where the pool's connections go."""
    for blocking, awaiting in (
        (redis.SSLConnection, _TLSConnection),
        (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
        (redis.Connection, _Connection),
    ):
        if issubclass(pool.connection_class, blocking):
            kwargs = _portable(pool.connection_kwargs, awaiting)
            kwargs.update(protocol=2, socket_timeout=None)  # replies are timed by the reader
            connection = awaiting(**kwargs)
            if isinstance(connection, _Dialled):
                connection.locate = master_of(pool)
            return connection
    raise LockUnavailable(
        f"No asyncio connection is known for {pool.connection_class.__name__}; "
        "use the blocking methods, or a redis://, rediss:// or unix:// URL as LOCATION."
    )


class _Dialled(OverSocket):
    """A connection of asyncio that finds the server without the default executor of the loop.

    asyncio looks up host names there, and waits while it is busy.
    """

    host: Any
    port: Any
    socket_connect_timeout: Any
    locate: Callable[[], tuple[str, int]] | None = None

    async def dial(self) -> socket.socket | None:
        if self.locate is None and _is_address(self.host):
            return None
        return await run_in_thread(self._dial, discard=socket.socket.close)

    def _dial(self) -> socket.socket:
        if self.locate is not None:
            self.host, self.port = self.locate()
        return socket.create_connection((self.host, self.port), self.socket_connect_timeout)


class _Connection(_Dialled, redis.asyncio.Connection):
    pass


class _TLSConnection(_Dialled, redis.asyncio.SSLConnection):
    pass


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
    known = parameters_of(connection_class)
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _PLAIN or key.startswith("ssl_")) and key in known
    }
