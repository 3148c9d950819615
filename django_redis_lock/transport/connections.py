"""Connections of our own to the server that a pool of redis-py's is for."""

from __future__ import annotations

import contextlib
import copy
import encodings.idna  # noqa: F401 - see below
import math
import re
import sys
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from django_redis_lock.support.text import without_passwords
from django_redis_lock.support.threads import struck
from django_redis_lock.transport.redis_py import parameters_of, socket_of

# Python imports ``encodings.idna`` when it first looks up a host. If a signal handler interrupts an
# import, its lock may stay locked forever, so that every thread that connects hangs.

DEFAULTS = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0, "socket_keepalive": True}
"""For connections, unless the settings say otherwise; timeouts in seconds."""
_TAKEN_OVER = {
    *("host", "port", "path", "db", "username", "password", "credential_provider"),
    *("client_name", "encoding", "encoding_errors", "redis_connect_func"),
    *("socket_timeout", "socket_connect_timeout", "socket_type"),
    *("socket_keepalive", "socket_keepalive_options"),
}
"""The arguments of redis-py's connections that say where, as whom and how to connect."""


def own_pool(pool: redis.ConnectionPool) -> redis.ConnectionPool:
    """Return a pool with the same settings that shares nothing with the given one.

    Its connections speak RESP2 (RESP3 only adds two round trips to connecting), give up in bounded
    time and try nothing twice: only what redis-py adds for its own pools is left out.
    """
    connection_class = pool.connection_class
    left_out = parameters_of(redis.SSLConnection) - _TAKEN_OVER
    taken = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if value is not None and (name.startswith("ssl_") or name not in left_out)
    }
    known = parameters_of(connection_class) & DEFAULTS.keys()
    kwargs: dict[str, Any] = {name: DEFAULTS[name] for name in known} | taken | {"protocol": 2}
    if isinstance(pool, SentinelConnectionPool):
        kwargs |= {"connection_class": connection_class, "sentinel_manager": pool.sentinel_manager}
        return SentinelConnectionPool(pool.service_name, **kwargs)  # type: ignore[no-untyped-call]
    return redis.ConnectionPool(connection_class, **kwargs)


def problem_of(url: str) -> str | None:
    """Return why redis-py can't use a URL as it is meant, continuing a sentence; else ``None``."""
    try:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # redis-py raises several classes
        return f"can't be used by redis-py: {without_passwords(str(error))}"
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
        "would be misread by redis-py: encode the password with urllib.parse.quote(password, "
        "safe=''), write the database as a number, and a socket as unix:///run/redis.sock"
    )


def leave_to_parent(connection: Any) -> None:
    """Close an inherited connection in a forked child only, even one that it is just reading."""
    with contextlib.suppress(Exception):  # the fork may have caught redis-py in any state
        connection.disconnect()


def connect(pool: redis.ConnectionPool, until: float = math.inf) -> Any:
    """Return an open connection; only looking up its host may last beyond ``until`` (monotonic)."""
    handled, connection = sys.exception(), new_connection(pool, until)
    own, own_connect = connection.socket_timeout, connection.socket_connect_timeout
    if until != math.inf:
        left = max(0.001, until - monotonic())
        connection.socket_timeout = min(left, own or left)
        connection.socket_connect_timeout = min(left, own_connect or left)
    try:
        connection.connect()
    except BaseException as error:
        connection.disconnect()  # a reply to the handshake may still come
        cause = error.__context__
        if cause is not None and cause is not handled and struck(cause):
            raise cause from None  # redis-py took it for an error of the connection
        raise
    if until != math.inf:
        connection.socket_timeout, connection.socket_connect_timeout = own, own_connect
        if (sock := socket_of(connection)) is not None:
            sock.settimeout(own)
    return connection


def new_connection(pool: redis.ConnectionPool, until: float = math.inf) -> Any:
    """Return a connection that is not open yet. Sentinels are asked ``until`` (monotonic)."""
    if not isinstance(pool, SentinelConnectionPool):
        return pool.connection_class(**pool.connection_kwargs)
    host, port = _ask_sentinels(pool, until)
    kwargs = {**pool.connection_kwargs, "host": host, "port": port}
    del kwargs["connection_pool"]
    uses_tls = issubclass(pool.connection_class, redis.SSLConnection)
    return (redis.SSLConnection if uses_tls else redis.Connection)(**kwargs)


def _ask_sentinels(pool: SentinelConnectionPool, until: float) -> tuple[str, int]:
    sentinels = pool.sentinel_manager.sentinels
    manager = copy.copy(pool.sentinel_manager)
    share = max(0.001, (until - monotonic()) / max(1, len(sentinels)))
    why = MasterNotFoundError(f"No master found for {pool.service_name!r}")
    for sentinel in [*sentinels]:
        own = own_pool(sentinel.connection_pool)
        for name in ("socket_timeout", "socket_connect_timeout"):
            own.connection_kwargs[name] = min(share, own.connection_kwargs[name])
        with redis.Redis.from_pool(own) as client:
            manager.sentinels = [client]
            try:
                found: tuple[str, int] = manager.discover_master(pool.service_name)
            except MasterNotFoundError as error:
                why = error
                continue
        # It is asked first the next time.
        sentinels[:] = sorted(sentinels, key=lambda each: each is not sentinel)
        return found
    raise why
