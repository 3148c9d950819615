"""Entries of ``CACHES`` that are on Redis: their connections, and what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import redis
from django.core.cache import caches
from django.utils.module_loading import import_string

from django_redis_lock.support.django_private import client_of_cache
from django_redis_lock.support.text import keep_secrets
from django_redis_lock.transport.connections import ignored_part
from django_redis_lock.transport.redis_py import parse_url

DJANGO_REDIS = "django-redis"
_SERVED_BY = {"django_redis.cache": DJANGO_REDIS, "django.core.cache.backends.redis": "Django"}
_BETWEEN_URLS = re.compile(r"[,;]\s*(?=[a-z+]+://)", re.IGNORECASE)


def served_by(configured: dict[str, Any]) -> str | None:
    """Return whose ``RedisCache`` a cache is, or a subclass; ``None`` for other caches."""
    try:
        found = import_string(str(configured.get("BACKEND")))
    except ImportError:
        return None
    bases = [kind for kind in getattr(found, "__mro__", ()) if kind.__name__ == "RedisCache"]
    return next((by for kind in bases if (by := _SERVED_BY.get(kind.__module__))), None)


def pool_of_cache(alias: str, configured: dict[str, Any]) -> redis.ConnectionPool | None:
    """Return the pool of connections to the server of a cache; ``None`` if it has no such server.

    The pool is django-redis's own. Django's cache has a pool in each thread, so this one is new. Of
    a primary and its replicas it is the primary's. Raises what makes no pool, of any class.
    """
    import_string(configured.get("BACKEND", ""))  # if it can't be, it is not of another kind
    by = served_by(configured)
    if by is None:
        return None
    if not configured.get("LOCATION"):
        raise ValueError("its LOCATION names no server")
    client: redis.Redis
    if by == DJANGO_REDIS:
        from django_redis import get_redis_connection

        client = get_redis_connection(alias)
    else:
        client = client_of_cache(caches.create_connection(alias)).get_client(write=True)
    return client.connection_pool


def spread_by(configured: dict[str, Any]) -> str | None:
    """Return the CLIENT_CLASS of django-redis that spreads keys over servers, if it has one."""
    if served_by(configured) != DJANGO_REDIS:
        return None
    from django_redis.client import ShardClient

    default = "django_redis.client.DefaultClient"
    client = str((configured.get("OPTIONS") or {}).get("CLIENT_CLASS", default))
    try:
        found = import_string(client)
    except ImportError:
        return None  # django-redis raises a better error
    return client if getattr(found, "get_client", None) in (None, ShardClient.get_client) else None


def problem_of_cache(alias: str, configured: dict[str, Any]) -> str | None:
    """Return why no connection can be made from an entry of CACHES."""
    urls = _urls_of(configured)
    for url in urls:
        if not isinstance(url, str):
            return f"whose LOCATION {url!r} is not a str"
    try:
        pool = pool_of_cache(alias, configured)
        assert pool is not None
        pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # of any class, even ImportError
        return f"from which {served_by(configured)} can't make a connection: {keep_secrets(error)}"
    for url in urls:
        if problem := ignored_part(url):
            return f"whose LOCATION {url!r} {problem}"
    return None


def _urls_of(configured: dict[str, Any]) -> list[Any]:
    urls = configured.get("LOCATION", "")
    if isinstance(urls, str):
        return _BETWEEN_URLS.split(urls)
    return [*urls] if isinstance(urls, list | tuple) else [urls]


def databases_of(configured: Any) -> set[tuple[Any, ...]]:
    """Return the databases of a URL or an entry of CACHES, as (host or path, port, db)."""
    entry = configured if isinstance(configured, dict) else {"LOCATION": configured}
    options = entry.get("OPTIONS")
    found: set[tuple[Any, ...]] = set()
    for url in _urls_of(entry):
        try:
            # Django's cache takes the database of a URL that names none from OPTIONS.
            database = int(options.get("db") or 0) if isinstance(options, dict) else 0
            parsed = {"host": "localhost", "port": 6379, "db": database, **parse_url(url)}
        except (ValueError, AttributeError, TypeError):
            continue  # not the URL of a Redis server
        place = parsed.get("path") or parsed["host"].lower()
        place = "127.0.0.1" if place in ("localhost", "::1") else place
        found.add((place, parsed["port"], parsed["db"]))
    return found
