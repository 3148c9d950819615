"""Finds what else uses the database of the locks, under any name of the host.

The system checks compare settings. This compares run ids, which are the same for all names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import redis
from django.conf import settings
from django.utils.module_loading import import_string

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.examination import in_parallel
from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.targets import (
    PATIENCE,
    Target,
    client_of,
    model_of,
)
from django_redis_lock.operators.workers import celery_app
from django_redis_lock.support.text import keep_secrets
from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.location import Location

CHECK = "sharing"
APART = "Give the locks a database of their own: another number at the end of the URL."
APART_IN_CLUSTER = "A cluster has one database for all; give the locks servers of their own."
ASK_IT = (
    "Mend its settings, or start its server, or let its user run INFO; or compare them by hand."
)
NO_RUN_ID = "it does not tell its run_id"
LET_IT_TELL = "Let the user of the locks run INFO, or compare the servers by hand."


class Place(NamedTuple):
    """A database of a server."""

    run_id: str
    database: int


class Other(NamedTuple):
    """Another user of a server: a cache, or Celery's broker or result backend."""

    name: str
    alias: str
    """Its alias in ``CACHES``, if it is a cache."""
    place: Place | None
    """``None`` if unknown."""
    why: str = ""
    """Why it is unknown."""


class Pooled(NamedTuple):
    """Another user of a server, with a pool to ask the server."""

    name: str
    alias: str
    pool: redis.ConnectionPool | None
    """``None`` if the settings are invalid."""
    why: str = ""
    """Why they are invalid."""


class Neighbours:
    """The caches, Celery's broker and result backend, and the aliases examined before."""

    def __init__(self) -> None:
        self._others: list[Other] | None = None
        self._aliases: list[tuple[BaseLockBackend, set[Place]]] = []

    def examine(self, backend: BaseLockBackend, targets: list[Target]) -> Iterator[Finding]:
        """Yield what an alias shares its database with."""
        told = in_parallel(_place_of_target, targets)
        places = {place for place in told if isinstance(place, Place)}
        for other, theirs in self._aliases:
            if other.key_prefix == backend.key_prefix:
                yield from _with_alias(backend, places, other, theirs)
        self._aliases.append((backend, places))
        if not targets:
            return
        if self._others is None:
            self._others = _others()
        for neighbour in self._others:
            if neighbour.alias and _is_told(backend, neighbour.alias):
                continue
            if not neighbour.place:
                yield _not_known(neighbour.name, neighbour.why, ASK_IT)
            elif not places:
                yield _not_known(neighbour.name, f"the locks' server: {told[0]}", LET_IT_TELL)
            elif neighbour.place in places:
                yield _warning(neighbour, in_cluster=any(one.packing.shard for one in targets))


def _with_alias(
    backend: BaseLockBackend, places: set[Place], other: BaseLockBackend, theirs: set[Place]
) -> Iterator[Finding]:
    """Compare two aliases with the same prefix.

    If one is a quorum, its majorities overlap with the other's only if all servers are the same.
    For servers that do not tell their run id, the settings decide.
    """
    size, their_size = _size(backend), _size(other)
    if size == their_size == 1:
        if places & theirs:
            yield _same_locks(backend, other)
        return
    all_known = len(places) >= size and len(theirs) >= their_size
    written, also_written = backend.databases(), other.databases()
    if not (places & theirs or (not all_known and written & also_written)):
        return
    known_as = f"LOCKS[{other.alias!r}], with the same KEY_PREFIX"
    if size == their_size and len(places | theirs) <= size:
        if all_known or written == also_written:
            yield _same_locks(backend, other)
        else:
            yield Finding(
                WARN,
                CHECK,
                f"not known: whether all servers are those of {known_as}; some are, and if not "
                "all, the two do not exclude each other",
                ASK_IT,
            )
        return
    yield Finding(
        FAIL,
        CHECK,
        f"some servers, and not all, are those of {known_as}: the two do not exclude each other",
        "Give one of them another KEY_PREFIX, or both the same BACKEND and LOCATION.",
    )


def _size(backend: BaseLockBackend) -> int:
    return len(backend.servers) if isinstance(backend, RedlockLockBackend) else 1


def _same_locks(backend: BaseLockBackend, other: BaseLockBackend) -> Finding:
    told = f"the same locks as LOCKS[{other.alias!r}]: same server, database and KEY_PREFIX"
    if type(backend) is not type(other):
        return Finding(
            WARN,
            CHECK,
            f"{told}, by another backend: what one writes the other reads as a foreign lock",
            "Use one backend for both, or give one of them another KEY_PREFIX.",
        )
    if backend.databases() & other.databases():
        return Finding(OK, CHECK, told)
    return Finding(
        WARN,
        CHECK,
        f"{told}, though LOCATION names it differently",
        "Give one of them another KEY_PREFIX, or, if it is meant, both the same LOCATION.",
    )


def _is_told(backend: BaseLockBackend, cache: str) -> bool:
    """Whether the settings tell: it is the cache of the locks, or W001 warns of it."""
    return bool(Location(cache, backend.alias).databases() & backend.databases())


def _not_known(name: str, why: str, remedy: str) -> Finding:
    told = f"not known: whether {name} shares the database of the locks: {why}"
    return Finding(WARN, CHECK, told, remedy)


def _warning(other: Other, *, in_cluster: bool) -> Finding:
    told = (
        "by another name of the server: clearing that cache frees locks that are held"
        if other.alias
        else "so what flushes one, or fills its memory, hits the other"
    )
    remedy = APART_IN_CLUSTER if in_cluster else APART
    return Finding(WARN, CHECK, f"{other.name} is in the same database, {told}", remedy)


def _place(make_model: Callable[[], Any]) -> Place | str:
    """Return a server's place, or why it is unknown."""
    try:
        model = make_model()
        with client_of(model) as client:
            run_id = str(client.info("server").get("run_id", ""))
        return Place(run_id, int(model.connection_kwargs.get("db") or 0)) if run_id else NO_RUN_ID
    except Exception as error:  # any error: these settings are not checked
        return reason(error)


def _place_of_target(target: Target) -> Place | str:
    return _place(target.model)


def _others() -> list[Other]:
    return in_parallel(_located, [*_caches(), *_celery()])


def _located(item: Pooled) -> Other:
    pool = item.pool
    if pool is None:
        return Other(item.name, item.alias, None, item.why)
    place = _place(lambda: model_of(pool, PATIENCE))
    if not item.alias:
        pool.disconnect()
    if isinstance(place, Place):
        return Other(item.name, item.alias, place)
    return Other(item.name, item.alias, None, place)


def _unread(name: str, alias: str, error: Exception) -> Pooled:
    return Pooled(name, alias, None, f"it can't be read: {keep_secrets(error)}")


def _caches() -> Iterator[Pooled]:
    for alias, configured in settings.CACHES.items():
        name = f"CACHES[{alias!r}]"
        try:
            pool = _pool_of_cache(alias, configured)
        except Exception as error:  # any error: these settings are not checked
            yield _unread(name, alias, error)
        else:
            if pool is not None:
                yield Pooled(name, alias, pool)


def _pool_of_cache(alias: str, configured: dict[str, Any]) -> redis.ConnectionPool | None:
    kind = import_string(configured.get("BACKEND", ""))
    modules = {base.__module__ for base in kind.__mro__}
    if "django_redis.cache" in modules:
        from django_redis import get_redis_connection

        pool: redis.ConnectionPool = get_redis_connection(alias).connection_pool
        return pool
    if "django.core.cache.backends.redis" not in modules:
        return None
    where = configured.get("LOCATION", "")
    if not where:
        raise ValueError("its LOCATION names no server")
    url = (re.split("[;,]", where) if isinstance(where, str) else where)[0]  # the primary
    options = {
        key: value
        for key, value in (configured.get("OPTIONS") or {}).items()
        if key not in ("serializer", "pool_class", "parser_class")
    }
    return redis.ConnectionPool.from_url(url, **options)


def _celery() -> Iterator[Pooled]:
    app = celery_app()
    if app is None:
        return
    for name, value in (
        ("Celery's broker", app.conf.broker_write_url or app.conf.broker_url),
        ("Celery's result backend", app.conf.result_backend),
    ):
        urls = value.split(";") if isinstance(value, str) else value or ()
        for url in urls:
            if str(url).startswith("sentinel://"):
                yield Pooled(name, "", None, "its sentinels are not asked for its master")
                break  # the other URLs are sentinels too
            try:
                pool = _pool_of_celery(str(url))
            except Exception as error:
                yield _unread(name, "", error)
            else:
                if pool is not None:
                    yield Pooled(name, "", pool)


def _pool_of_celery(url: str) -> redis.ConnectionPool | None:
    """Return a pool for kombu's URL of a Redis; ``None`` for another transport."""
    if url.startswith("redis+socket://"):
        url = "unix://" + url.removeprefix("redis+socket://").replace("virtual_host=", "db=")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    for word in ("NONE", "OPTIONAL", "REQUIRED"):
        url = url.replace(f"ssl_cert_reqs=CERT_{word}", f"ssl_cert_reqs={word.lower()}")
    return pool_from_url(url)
