"""Compares the members of a quorum, and finds what shares a server with the locks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import redis
from django.conf import settings

from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.redlock.votes import majority
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.servers import (
    Finding,
    Server,
    client_of,
    fail,
    in_parallel,
    ok,
    warn,
)
from django_redis_lock.transport.caches import pool_of_cache
from django_redis_lock.transport.connections import pool_from_url


def check_majority(backend: RedlockLockBackend, answering: int) -> Finding:
    """Do enough servers answer?"""
    size = len(backend.servers)
    needed = majority(size)
    found = f"{answering} of {size} servers answer"
    if answering < needed:
        remedy = "Start the others, or fix LOCATION or the network."
        return fail("quorum", f"{found}, but a lock needs {needed}", remedy)
    if answering == needed:
        found += ": when one more fails, no lock can be acquired"
        return warn("quorum", found, "Start the others.")
    return ok("quorum", f"{found}; {answering - needed} more may fail")


_MakePool = Callable[[], redis.ConnectionPool | None]


class _Place(NamedTuple):
    """A database of a server."""

    run_id: str
    database: int


def check_sharing(servers: list[Server]) -> Finding:
    """Are caches or Celery's broker on a server of the locks, under any name of the host?

    The system checks compare settings. This compares run ids, which are the same for all names.
    """
    ours = in_parallel(lambda server: _place(lambda: server.pool), servers)
    places = [place for place in ours if isinstance(place, _Place)]
    unknown = [f"the locks' server: {place}" for place in ours if isinstance(place, str)][:1]
    others = _others()
    theirs = in_parallel(lambda other: _place(other[1]), others)
    same_database, same_server = [], []
    for (name, _), place in zip(others, theirs, strict=True):
        if place is None:
            continue  # not a Redis
        if isinstance(place, str):
            unknown.append(f"{name}: {place}")
        elif place in places:
            same_database.append(name)
        elif place.run_id in [one.run_id for one in places]:
            same_server.append(name)
    found = [f"not known: {'; '.join(unknown)}"] if unknown else []
    remedy = "Fix its settings, start its server, or let its user run INFO."
    if same_database:
        found.insert(0, f"clearing {', '.join(same_database)} frees locks: in the same database")
        remedy = "Give the locks a database of their own, in a cluster servers of their own."
    if found:
        return warn("sharing", "; ".join(found), remedy)
    if same_server:
        return ok("sharing", f"on the same server, in another database: {', '.join(same_server)}")
    return ok("sharing", "neither a cache nor Celery's broker is on a server of the locks")


def _others() -> list[tuple[str, _MakePool]]:
    """Return the other users of Redis, by name."""
    caches = settings.CACHES.items()
    return [
        *((f"CACHES[{alias!r}]", partial(pool_of_cache, alias, entry)) for alias, entry in caches),
        *(("Celery's broker", partial(pool_from_url, url)) for url in _broker_urls()),
    ]


def _broker_urls() -> list[str]:
    """Return the URLs of Celery's broker that are those of a Redis."""
    try:
        from celery.app import app_or_default
    except ImportError:
        return []
    conf = app_or_default().conf
    value = conf.broker_write_url or conf.broker_url or ()
    urls = value.split(";") if isinstance(value, str) else map(str, value)
    return [
        re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda found: found[0][5:].lower(), url)
        for url in urls
        if url.startswith(("redis://", "rediss://"))
    ]


def _place(make_pool: _MakePool) -> _Place | str | None:
    """Return where a pool leads to, or why that is unknown; ``None`` if there is no pool."""
    try:
        pool = make_pool()
        if pool is None:
            return None
        with client_of(pool) as client:
            run_id = str(client.info("server").get("run_id", ""))
        database = int(pool.connection_kwargs.get("db") or 0)
    except Exception as error:  # any error: these settings are not checked
        return reason(error)
    return _Place(run_id, database) if run_id else "it does not report its run_id"
