"""Entries of ``CACHES`` that are on Redis: their connections, and what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import redis
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.utils.module_loading import import_string

from django_redis_lock.support.django_private import client_of_cache
from django_redis_lock.support.text import keep_secrets, without_passwords
from django_redis_lock.transport.connections import check_pool, ignored_part
from django_redis_lock.transport.redis_py import parse_url


def pool_of_cache(alias: str, configured: dict[str, Any]) -> redis.ConnectionPool | None:
    """Return the pool of connections to the server of a cache; ``None`` if it has no such server.

    The pool is django-redis's own. Django's cache has a pool in each thread, so this one is new. Of
    a primary and its replicas it is the primary's. Raises what makes no pool, of any class.
    """
    backend = configured.get("BACKEND", "")
    import_string(backend)  # a cache that can't be imported is not one of another kind
    by_django_redis = is_of_django_redis(backend)
    if not (by_django_redis or is_of_django(backend)):
        return None
    if not configured.get("LOCATION"):
        raise ValueError("its LOCATION names no server")
    pool: redis.ConnectionPool
    if by_django_redis:
        from django_redis import get_redis_connection

        pool = get_redis_connection(alias).connection_pool
    else:
        client = client_of_cache(caches.create_connection(alias))
        pool = client.get_client(write=True).connection_pool
    return pool


def is_of_django_redis(backend: Any) -> bool:
    """Whether the path of a cache's class is that of django-redis's, or of a subclass."""
    try:
        from django_redis.cache import RedisCache as DjangoRedisCache
    except ImportError:
        return False
    return _is_path_of(backend, DjangoRedisCache)


def is_of_django(backend: Any) -> bool:
    """Whether the path of a cache's class is that of Django's ``RedisCache``, or of a subclass."""
    return _is_path_of(backend, RedisCache)


def _is_path_of(path: Any, kind: type) -> bool:
    try:
        found = import_string(str(path))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, kind)


def wrong_type(configured: Any) -> str | None:
    """Return what is not a dict although it must be, in an entry of CACHES."""
    if not isinstance(configured, dict):
        return f"whose entry is a {type(configured).__name__}, not a dict"
    options = configured.get("OPTIONS") or {}
    if not isinstance(options, dict):
        return f"whose OPTIONS are a {type(options).__name__}, not a dict"
    return None


def spread_by(configured: dict[str, Any]) -> str | None:
    """Return the CLIENT_CLASS of django-redis that spreads keys over servers, if it has one."""
    if not is_of_django_redis(configured.get("BACKEND", "")):
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
            return f"whose LOCATION {without_passwords(repr(url))} is not a str"
    try:
        pool = pool_of_cache(alias, configured)
        assert pool is not None
        check_pool(pool)
    except Exception as error:  # of any class, even ImportError
        by = "django-redis" if is_of_django_redis(configured.get("BACKEND", "")) else "Django"
        return f"from which {by} can't make a connection: {keep_secrets(error)}"
    for url in urls:
        if problem := ignored_part(url):
            return f"whose LOCATION {without_passwords(repr(url))} {problem}"
    return None


def _urls_of(configured: dict[str, Any]) -> list[Any]:
    urls = configured.get("LOCATION", "")
    if isinstance(urls, str):
        return re.split("[;,]" if is_of_django(configured.get("BACKEND", "")) else ",", urls)
    return [*urls] if isinstance(urls, list | tuple) else [urls]


def databases_of(configured: Any) -> set[tuple[Any, ...]]:
    """Return the databases of a URL or an entry of CACHES, as (host or path, port, db)."""
    entry = configured if isinstance(configured, dict) else {"LOCATION": configured}
    urls, options = entry.get("LOCATION", ""), entry.get("OPTIONS")
    if isinstance(urls, str):
        urls = re.split("[;,]", urls)
    if not isinstance(urls, list | tuple):
        return set()  # other cache backends have other kinds of LOCATION
    found: set[tuple[Any, ...]] = set()
    for url in urls:
        try:
            parsed = _default_database(options) | parse_url(url)
        except (ValueError, AttributeError, TypeError):
            continue  # not the URL of a Redis server
        if "path" in parsed:
            found.add((parsed["path"], None, parsed["db"]))
        else:
            host = parsed.get("host", "localhost").lower()
            host = "127.0.0.1" if host in ("localhost", "::1") else host
            found.add((host, parsed.get("port", 6379), parsed["db"]))
    return found


def _default_database(options: Any) -> dict[str, int]:
    """Return the database of URLs that name none: Django's cache takes it from OPTIONS."""
    return {"db": int((options if isinstance(options, dict) else {}).get("db") or 0)}
