"""What the doctor examines, a server as an entry of ``LOCKS`` uses it, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import redis
from redis.exceptions import RedisError

from django_redis_lock.backends.redis.backend import RedisLockBackend
from django_redis_lock.backends.servers.base import ServersLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import listening_connection, master_of
from django_redis_lock.transport.packing import Packing, Replicas

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

PATIENCE = 5.0
"""Seconds to wait for an answer at most, whatever the settings say."""


class Finding(NamedTuple):
    """The outcome of one examination."""

    status: str
    """``ok``, ``warn`` or ``fail``."""
    check: str
    """What was examined."""
    found: str
    """What was found."""
    remedy: str = ""
    """What to do about it, if anything."""
    server: str = ""
    """The server that was examined, if it was one."""


def ok(check: str, found: str) -> Finding:
    return Finding("ok", check, found)


def warn(check: str, found: str, remedy: str = "") -> Finding:
    return Finding("warn", check, found, remedy)


def fail(check: str, found: str, remedy: str = "") -> Finding:
    return Finding("fail", check, found, remedy)


class Target:
    def __init__(
        self,
        backend: ServersLockBackend,
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
        self.scripted = isinstance(backend, RedisLockBackend)
        """Whether its locks are kept by scripts."""
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
            where += " (the master, as reported by the sentinels)"
        return without_passwords(f"{where} {database}")

    @property
    def located(self) -> bool:
        """Whether its address is known; sentinels may not know the master."""
        return self._unlocated is None

    @property
    def member(self) -> bool:
        """Whether it is a member of a quorum."""
        return self.rejoin_delay is not None

    @property
    def wait(self) -> str:
        """The waiting scheme; ``""`` if it does not involve the server."""
        return "" if self.member else getattr(self.backend, "wait", "")

    @property
    def replicas(self) -> Replicas | None:
        """The replicas that a lock waits for."""
        return getattr(self.backend, "replicas", None)

    @property
    def packing(self) -> Packing:
        if isinstance(self.backend, RedisLockBackend):
            return self.backend.servers.packing_at(self.pool)
        return Packing(self.backend.key_prefix)

    def channel(self, process: str) -> str:
        """Return the channel on which a process receives its grants."""
        shard = self.packing.shard
        return f"{self.backend.key_prefix}-grant:{f'{{{shard}}}:' if shard else ''}{process}"

    @property
    def user(self) -> str:
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


def pool_of(backend: ServersLockBackend) -> redis.ConnectionPool:
    """Return the pool of a backend. Raises ``InvalidLockBackend`` if its arguments are invalid."""
    try:
        pool = backend.pool
        pool.connection_class(**pool.connection_kwargs)  # is never opened
    except (TypeError, ValueError) as error:
        where = f"LOCKS[{backend.alias!r}]['LOCATION']"
        raise InvalidLockBackend(f"{where} is invalid: {without_passwords(str(error))}.") from error
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


def in_parallel(ask: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
    """Return the result for each item. Several timeouts take as long as one."""
    items = list(items)
    with ThreadPoolExecutor(max(1, len(items))) as threads:
        return list(threads.map(ask, items))


class _OwnPool(redis.ConnectionPool):
    def __init__(self, model: Any) -> None:
        super().__init__(connection_class=model.connection_class, protocol=2)
        self._model = model

    def make_connection(self) -> Any:
        return listening_connection(self._model)
