"""The servers to examine, each as an entry of ``LOCKS`` uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import redis
from redis.exceptions import RedisError

from django_redis_lock.backends.getset.backend import GetSetLockBackend
from django_redis_lock.backends.redis.backend import RedisLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import listening_connection, master_of
from django_redis_lock.transport.packing import Packing

PATIENCE = 5.0
"""Seconds to wait for an answer at most, whatever the settings say."""


class Target:
    """One server of an entry of ``LOCKS``."""

    def __init__(
        self,
        backend: RedisLockBackend | GetSetLockBackend,
        pool: redis.ConnectionPool,
        *,
        rejoin_delay: float | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.backend = backend
        self.pool = pool
        """The backend's pool; only its settings are used."""
        self.rejoin_delay = rejoin_delay
        """Seconds for which a member of a quorum does not vote after a restart."""
        own = pool.connection_kwargs.get("socket_timeout")
        self.patience = min(own or patience, patience)
        self._model: Any = None
        self._unlocated: Exception | None = None
        try:
            self._model = model_of(pool, self.patience)
        except (RedisError, OSError) as error:
            self._unlocated = error
        self.address = self._address()

    def _address(self) -> str:
        if self._model is None:
            return f"the master of {getattr(self.pool, 'service_name', '')!r}"
        kwargs = self._model.connection_kwargs
        database = f"database {kwargs.get('db') or 0}"
        if "path" in kwargs:
            return f"unix:{kwargs['path']} {database}"
        where = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        if master_of(self.pool) is not None:
            where += " (the master, as the sentinels tell)"
        return without_passwords(f"{where} {database}")

    @property
    def located(self) -> bool:
        """Whether its address is known; sentinels may not tell it."""
        return self._unlocated is None

    @property
    def member(self) -> bool:
        """Whether it is a member of a quorum."""
        return self.rejoin_delay is not None

    @property
    def scripted(self) -> bool:
        """Whether its locks are kept by scripts."""
        return isinstance(self.backend, RedisLockBackend)

    @property
    def wait(self) -> str:
        """The waiting scheme; ``""`` if it does not involve the server."""
        if self.member or not isinstance(self.backend, RedisLockBackend):
            return ""
        return str(self.backend.wait)

    @property
    def waits_for_replicas(self) -> bool:
        """Whether a lock counts only once replicas have it."""
        return isinstance(self.backend, RedisLockBackend) and self.backend.replicas is not None

    @property
    def packing(self) -> Packing:
        """The keys on this server."""
        if isinstance(self.backend, RedisLockBackend):
            return self.backend.servers.packing_at(self.pool)
        return Packing(self.backend.key_prefix)

    @property
    def local_clock(self) -> bool:
        """Whether leases end by the clocks of the clients."""
        options = self.backend.params.get("OPTIONS") or {}
        return not self.scripted and options.get("CLOCK") == "local"

    @property
    def user(self) -> str:
        """The user of the connections."""
        return str(self.pool.connection_kwargs.get("username") or "default")

    def model(self, **more: Any) -> Any:
        """Return an argument for ``listening_connection()`` that connects to the server.

        Raises ``RedisError`` and ``OSError`` if no sentinel knows the master.
        """
        if self._unlocated is not None:
            raise self._unlocated
        kwargs = {**self._model.connection_kwargs, **more}
        return SimpleNamespace(
            connection_class=self._model.connection_class, connection_kwargs=kwargs
        )

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield a client with connections of its own, closed at the end.

        Raises ``RedisError`` and ``OSError`` if no sentinel knows the master.
        """
        with client_of(self.model()) as client:
            yield client


def pool_of(backend: RedisLockBackend | GetSetLockBackend) -> redis.ConnectionPool:
    """Return the pool of a backend. Raises ``InvalidLockBackend`` if its arguments are invalid."""
    try:
        pool = backend.pool
        pool.connection_class(**pool.connection_kwargs)  # is never opened
    except (TypeError, ValueError) as error:
        where = f"LOCKS[{backend.alias!r}]['LOCATION']"
        raise InvalidLockBackend(
            f"{where} makes no connection: {without_passwords(str(error))}."
        ) from error
    return pool


@contextmanager
def client_of(model: Any) -> Iterator[Any]:
    """Yield a client that connects as a model says, without retries."""
    own = _OwnPool(model)
    try:
        yield redis.Redis(connection_pool=own)
    finally:
        own.disconnect()


def model_of(pool: redis.ConnectionPool, patience: float) -> Any:
    """Return how a pool connects, with timeouts of at most ``patience`` seconds.

    Raises ``RedisError`` and ``OSError`` if no sentinel knows the master.
    """
    kind, kwargs, locate = pool.connection_class, dict(pool.connection_kwargs), master_of(pool)
    if locate is not None:
        kind = redis.SSLConnection if issubclass(kind, redis.SSLConnection) else redis.Connection
        kwargs["host"], kwargs["port"] = locate()
    for timeout in ("socket_timeout", "socket_connect_timeout"):
        kwargs[timeout] = min(kwargs.get(timeout) or patience, patience)
    kwargs.pop("retry", None)
    return SimpleNamespace(connection_class=kind, connection_kwargs=kwargs)


class _OwnPool(redis.ConnectionPool):
    def __init__(self, model: Any) -> None:
        super().__init__(connection_class=model.connection_class, protocol=2)
        self._model = model

    def make_connection(self) -> Any:
        return listening_connection(self._model)
