"""Finds what shares a server with the locks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import redis
from django.conf import settings

from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.servers import (
    Finding,
    Server,
    client_of,
    in_parallel,
    ok,
    warn,
)
from django_redis_lock.transport.caches import pool_of_cache
from django_redis_lock.transport.connections import pool_from_url

_MakePool = Callable[[], redis.ConnectionPool | None]


def check_sharing(servers: list[Server]) -> Finding:
    """Are caches or Celery's broker on a server of the locks, under any name of the host?

    The system checks compare settings. This compares run ids, which are the same for all names.
    """
    ours = in_parallel(lambda server: _place(lambda: server.pool), servers)
    run_ids = [place[0] for place in ours if isinstance(place, tuple)]
    unknown = [f"the locks' server: {place}" for place in ours if isinstance(place, str)][:1]
    same_database, same_server = [], []
    others = _others()
    places = in_parallel(lambda other: _place(other[1]), others)
    for (name, _), place in zip(others, places, strict=True):
        if isinstance(place, str):
            unknown.append(f"{name}: {place}")
        elif place in ours:
            same_database.append(name)
        elif place and place[0] in run_ids:
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
    return [url for url in urls if url.startswith(("redis://", "rediss://"))]


def _place(make_pool: _MakePool) -> tuple[str, int] | str | None:
    """Return a pool's run id and database, or why they are not known; ``None`` without a pool."""
    try:
        pool = make_pool()
        if pool is None:
            return None
        with client_of(pool) as client:
            run_id = str(client.info("server").get("run_id", ""))
        database = int(pool.connection_kwargs.get("db") or 0)
    except Exception as error:  # any error: these settings are not checked
        return reason(error)
    return (run_id, database) if run_id else "it does not report its run_id"
