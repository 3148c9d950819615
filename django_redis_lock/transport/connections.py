"""Pools of redis-py, and connections outside of a pool to the same server."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - see below
import ipaddress
import re
import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.sentinel import SentinelConnectionPool

from django_redis_lock.exceptions import LockUnavailable
from django_redis_lock.support.text import keep_secrets
from django_redis_lock.transport.redis_py import OverSocket, parameters_of
from django_redis_lock.transport.threads import run_in_thread

SCHEMES = ("redis://", "rediss://", "unix://")

# Python imports ``encodings.idna`` when it first looks up a host. If an exception from a signal
# handler (Celery's soft time limit) interrupts an import, the lock of that import can stay locked
# for ever, and then every thread that connects hangs. So it is imported early.

URL_DEFAULTS = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "protocol": 2,  # RESP3 would only add two round trips to each new connection
}
"""For a LOCATION that is a URL, unless its query says otherwise; timeouts in seconds."""


def master_of(pool: redis.ConnectionPool) -> Callable[[], tuple[str, int]] | None:
    """Return a function that asks the sentinels of a pool for the master; ``None`` without any."""
    if not isinstance(pool, SentinelConnectionPool):
        return None
    return partial(pool.sentinel_manager.discover_master, pool.service_name)


def pool_from_url(url: str) -> redis.ConnectionPool:
    """Return a pool for a ``redis://``, ``rediss://`` or ``unix://`` URL."""
    defaults: dict[str, Any] = dict(URL_DEFAULTS)
    if url.startswith("unix:"):
        del defaults["socket_keepalive"]
    return redis.ConnectionPool.from_url(url, **defaults)


def problem_of(url: str) -> str | None:
    """Return why redis-py can't use a URL as it is meant, continuing a sentence; else ``None``."""
    try:
        pool = pool_from_url(url)
        pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # redis-py raises several classes
        return f"can't be used by redis-py: {keep_secrets(error)}"
    return ignored_part(url)


def ignored_part(url: str) -> str | None:
    """Return what redis-py would ignore in a URL, so that it would connect elsewhere."""
    parts = urlsplit(url)
    path, in_netloc = parts.path.strip("/"), "@" in parts.netloc
    if parts.scheme == "unix":
        understood = path != "" and (in_netloc or not parts.netloc)
    else:
        in_path = "@" in url and not in_netloc
        understood = not (parts.fragment or in_path or re.search("[^0-9]", path))
    if understood:
        return None
    return (
        "would be misread by redis-py; write a password as urllib.parse.quote(password, safe='') "
        "gives it, a database as a number, and a socket as unix:///run/redis.sock"
    )


def leave_to_parent(connection: Any) -> None:
    """Close an inherited connection in a forked child only.

    Code that is in the middle of reading it finds it closed, and takes no reply of the parent's.
    """
    with contextlib.suppress(Exception):  # the fork may have caught redis-py in any state
        connection.disconnect()


def listening_connection(pool: redis.ConnectionPool) -> Any:
    """Return a connection outside of a pool, to the same server, that may block for long."""
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
    """Return an asyncio connection to the server of a pool. Raises ``LockUnavailable``."""
    for blocking, awaiting in (
        (redis.SSLConnection, _TLSConnection),
        (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
        (redis.Connection, _Connection),
    ):
        if issubclass(pool.connection_class, blocking):
            kwargs = _portable(pool.connection_kwargs, awaiting)
            kwargs.update(protocol=2, socket_timeout=None)  # the reader times the replies
            connection = awaiting(**kwargs)
            if isinstance(connection, _Dialled):
                connection.locate = master_of(pool)
            return connection
    raise LockUnavailable(
        f"No asyncio connection is known for {pool.connection_class.__name__}; "
        "use the blocking methods, or a redis://, rediss:// or unix:// URL as LOCATION."
    )


class _Dialled(OverSocket):
    """An asyncio connection that looks up hosts without the default executor of the loop.

    asyncio would use that, and wait while it is busy.
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
    """Return the arguments that say where and as whom to connect, if the class takes them.

    What redis-py adds for its own pools (parsers, maintenance handlers, retries) is left out.
    """
    known = parameters_of(connection_class)
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _PLAIN or key.startswith("ssl_")) and key in known
    }
