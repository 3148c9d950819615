"""Finds what else uses the database of the locks, under any name of the host.

The system checks compare settings. This compares run ids, which are the same for all names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import redis
from django.conf import settings

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.settings import celery_app
from django_redis_lock.management.console.doctor.targets import (
    PATIENCE,
    Finding,
    Target,
    client_of,
    fail,
    in_parallel,
    model_of,
    ok,
    warn,
)
from django_redis_lock.support.text import keep_secrets
from django_redis_lock.transport.caches import pool_of_cache
from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.location import Location

APART = "Give the locks a database of their own: another number at the end of the URL."
APART_IN_CLUSTER = "Give the locks servers of their own: a cluster has only one database."
ASK_IT = "Fix its settings, start its server, let its user run INFO, or compare them by hand."
NO_RUN_ID = "it does not report its run_id"
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
    pool: redis.ConnectionPool | str
    """A pool to ask its server, or why its settings can't be used."""


class Neighbours:
    """The caches, Celery's broker and result backend, and the aliases examined before."""

    def __init__(self) -> None:
        self._others: list[tuple[Other, Place | str]] | None = None
        self._aliases: list[tuple[BaseLockBackend, set[Place]]] = []

    def examine(self, backend: BaseLockBackend, targets: list[Target]) -> Iterator[Finding]:
        """Yield what an alias shares its database with."""
        answers = in_parallel(lambda target: _place(target.model), targets)
        places = {place for place in answers if isinstance(place, Place)}
        for alias, theirs in self._aliases:
            if alias.key_prefix == backend.key_prefix:
                yield from _with_alias(backend, places, alias, theirs)
        self._aliases.append((backend, places))
        if not targets:
            return
        if self._others is None:
            others = [*_caches(), *_celery()]
            self._others = list(zip(others, in_parallel(_place_of, others), strict=True))
        for other, place in self._others:
            if other.alias and _is_known(backend, other.alias):
                continue
            if isinstance(place, str):
                yield _not_known(other.name, place, ASK_IT)
            elif not places:
                yield _not_known(other.name, f"the locks' server: {answers[0]}", LET_IT_TELL)
            elif place in places:
                yield _warning(other, in_cluster=any(one.packing.shard for one in targets))


def _with_alias(
    backend: BaseLockBackend, places: set[Place], other: BaseLockBackend, theirs: set[Place]
) -> Iterator[Finding]:
    """Compare two aliases with the same prefix.

    If one is a quorum, its majorities overlap with the other's only if all servers are the same.
    For servers that do not report their run id, the settings decide.
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
    if size != their_size or len(places | theirs) > size:
        yield fail(
            "sharing",
            f"only some servers are those of {known_as}: the two do not exclude each other",
            "Set another KEY_PREFIX for one of them, or the same BACKEND and LOCATION for both.",
        )
    elif all_known or written == also_written:
        yield _same_locks(backend, other)
    else:
        yield warn(
            "sharing",
            f"not known: whether all servers are those of {known_as}; some are, and unless all "
            "are, the two do not exclude each other",
            ASK_IT,
        )


def _size(backend: BaseLockBackend) -> int:
    return len(backend.servers) if isinstance(backend, RedlockLockBackend) else 1


def _same_locks(backend: BaseLockBackend, other: BaseLockBackend) -> Finding:
    found = f"the same locks as LOCKS[{other.alias!r}]: same server, database and KEY_PREFIX"
    if type(backend) is not type(other):
        return warn(
            "sharing",
            f"{found}, by another backend: each reads the other's locks as another program's",
            "Use one backend for both, or set another KEY_PREFIX for one of them.",
        )
    if backend.databases() & other.databases():
        return ok("sharing", found)
    return warn(
        "sharing",
        f"{found}, though LOCATION names it differently",
        "Set another KEY_PREFIX for one of them, or the same LOCATION for both if it is intended.",
    )


def _is_known(backend: BaseLockBackend, cache: str) -> bool:
    """Whether the settings show it: it is the cache of the locks, or W001 warns of it."""
    return bool(Location(cache, backend.alias).databases() & backend.databases())


def _not_known(name: str, why: str, remedy: str) -> Finding:
    found = f"not known: whether {name} shares the database of the locks: {why}"
    return warn("sharing", found, remedy)


def _warning(other: Other, *, in_cluster: bool) -> Finding:
    effect = (
        "under another name of the server: clearing that cache frees locks that are held"
        if other.alias
        else "so flushing or filling one affects the other"
    )
    remedy = APART_IN_CLUSTER if in_cluster else APART
    return warn("sharing", f"{other.name} is in the same database, {effect}", remedy)


def _place(make_model: Callable[[], Any]) -> Place | str:
    """Return a server's place, or why it is unknown."""
    try:
        model = make_model()
        with client_of(model) as client:
            run_id = str(client.info("server").get("run_id", ""))
        return Place(run_id, int(model.connection_kwargs.get("db") or 0)) if run_id else NO_RUN_ID
    except Exception as error:  # any error: these settings are not checked
        return reason(error)


def _place_of(other: Other) -> Place | str:
    pool = other.pool
    if isinstance(pool, str):
        return pool
    place = _place(lambda: model_of(pool, PATIENCE))
    if not other.alias:
        pool.disconnect()
    return place


def _other(
    name: str, alias: str, make_pool: Callable[[], redis.ConnectionPool | None]
) -> Iterator[Other]:
    """Yield another user, unless it is of a kind that uses no Redis."""
    try:
        pool = make_pool()
    except Exception as error:  # any error: these settings are not checked
        yield Other(name, alias, f"it can't be read: {keep_secrets(error)}")
    else:
        if pool is not None:
            yield Other(name, alias, pool)


def _caches() -> Iterator[Other]:
    for alias, configured in settings.CACHES.items():
        yield from _other(f"CACHES[{alias!r}]", alias, partial(pool_of_cache, alias, configured))


def _celery() -> Iterator[Other]:
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
                yield Other(name, "", "its sentinels are not asked for its master")
                break  # the other URLs are sentinels too
            yield from _other(name, "", partial(_pool_of_celery, str(url)))


def _pool_of_celery(url: str) -> redis.ConnectionPool | None:
    """Return a pool for kombu's URL of a Redis; ``None`` for another transport."""
    if url.startswith("redis+socket://"):
        url = "unix://" + url.removeprefix("redis+socket://").replace("virtual_host=", "db=")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    for word in ("NONE", "OPTIONAL", "REQUIRED"):
        url = url.replace(f"ssl_cert_reqs=CERT_{word}", f"ssl_cert_reqs={word.lower()}")
    return pool_from_url(url)
