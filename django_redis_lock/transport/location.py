"""LOCATION: an alias of CACHES that is on Redis, a URL, or a list of URLs; and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core import checks
from django.core.cache import caches
from django.core.cache.backends.base import default_key_func, get_key_func
from django.utils.module_loading import import_string

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.django_private import client_of_cache
from django_redis_lock.support.text import BETWEEN_URLS, without_passwords
from django_redis_lock.transport.connections import ignored_part, own_pool, problem_of
from django_redis_lock.transport.redis_py import parse_url

DJANGO_REDIS = "django-redis"
_SERVED_BY = {"django_redis.cache": DJANGO_REDIS, "django.core.cache.backends.redis": "Django"}

HOW_TO = (
    "Set LOCATION to an alias of CACHES with django-redis or Django's RedisCache, such as "
    'CACHES = {"locks": {"BACKEND": "django_redis.cache.RedisCache", '
    '"LOCATION": "redis://127.0.0.1:6379/1"}} with LOCKS = {"default": {"BACKEND": '
    '"django_redis_lock.backends.redis.RedisLockBackend", "LOCATION": "locks"}}, '
    'or to a URL, such as "redis://127.0.0.1:6379/1".'
)
ONE_SERVER = (
    "Set LOCATION to the URL of one server, or to an alias with django-redis's DefaultClient, "
    "HerdClient or SentinelClient. For several servers use a list: of nodes of a cluster, or of "
    'independent servers with BACKEND "django_redis_lock.backends.redlock.RedlockLockBackend".'
)
CORRECT_THE_ALIAS = (
    "Correct that alias of CACHES. If the password has other characters than letters and digits, "
    "encode it with urllib.parse.quote(password, safe=''), or with django-redis put it into "
    "OPTIONS['PASSWORD']."
)
A_DATABASE_OF_THEIR_OWN = (
    "Use a database for locks alone, such as /1 at the end of the URL, with "
    'a separate alias, such as CACHES["locks"].'
)
A_CLUSTER_OF_THEIR_OWN = "A cluster has only one database: use a separate cluster for locks."


class Location:
    """Where the server of one entry of LOCKS is."""

    def __init__(self, value: Any, using: str) -> None:
        self.using = using
        self._where = f"LOCKS[{using!r}]['LOCATION']"
        self.urls: list[str] | None = None
        self.url: str | None = None
        self.alias: str | None = None
        if isinstance(value, list | tuple):
            self.urls = self._nodes(value)
        elif not isinstance(value, str) or not value:
            raise InvalidLockBackend(
                f"{self._where} must be an alias of CACHES, a URL, or a list of the URLs of a "
                f"cluster's nodes, not {value!r}."
            )
        elif not value.startswith(("redis://", "rediss://", "unix://")):
            self.alias = value
        elif problem := problem_of(value):
            raise InvalidLockBackend(f"{self._where} is {shown(value)}, which {problem}.")
        else:
            self.url = value

    def _nodes(self, urls: Any) -> list[str]:
        """Return the URLs of some nodes of a cluster, which have to belong to one cluster."""
        if not urls:
            raise InvalidLockBackend(
                f"{self._where} is an empty list: add the URLs of some nodes of the cluster, "
                f"such as ['redis://10.0.0.1:6379', 'redis://10.0.0.2:6379']."
            )
        ways = set()
        for url in urls:
            if not isinstance(url, str) or not url.startswith(("redis://", "rediss://")):
                instead = "use an alias without a list"
                problem: str | None = f"does not begin with redis:// or rediss://; {instead}"
            elif not (problem := problem_of(url)) and parse_url(url).get("db"):
                problem = "names a database, but a cluster has only database 0: remove it"
            if problem:
                raise InvalidLockBackend(f"{self._where} has {shown(url)}, which {problem}.")
            parts = urlsplit(url)
            ways.add((parts.scheme, parts.netloc.rpartition("@")[0], parts.query))
        if len(ways) > 1:
            raise InvalidLockBackend(
                f"{self._where} has different schemes, users, passwords or options: "
                f"use the same in each URL."
            )
        return list(urls)

    def name_maker(self) -> Callable[[str], str] | None:
        """Return how the alias makes keys, if its KEY_FUNCTION or VERSION is not Django's default.

        Its KEY_PREFIX is only passed to a function, as LOCKS has one. Raises ``ImportError``.
        """
        configured = settings.CACHES.get(self.alias)
        if not isinstance(configured, dict):
            return None
        prefix, version = configured.get("KEY_PREFIX", ""), configured.get("VERSION", 1)
        make = get_key_func(configured.get("KEY_FUNCTION"))
        if make is not default_key_func:
            return lambda name: make(name, prefix, version)
        return None if version == 1 else lambda name: default_key_func(name, "", version)

    def pool(self) -> redis.ConnectionPool:
        """Return a pool with the settings of the server. Raises ``InvalidLockBackend``."""
        if self.url:
            return own_pool(redis.ConnectionPool.from_url(self.url))
        assert self.alias
        if problem := self._problem(self.alias):
            raise InvalidLockBackend(f"{problem.msg} {problem.hint}")
        return own_pool(pool_of_cache(self.alias, settings.CACHES[self.alias]))

    def _problem(self, alias: str) -> checks.Error | None:
        configured = settings.CACHES.get(alias)
        options = configured.get("OPTIONS") or {} if isinstance(configured, dict) else None
        code, hint, what = "E009", CORRECT_THE_ALIAS, "an alias of CACHES"
        if alias not in settings.CACHES:
            code, hint, what = "E004", HOW_TO, "which is not an alias of CACHES"
            text = f"(the aliases are {', '.join(map(repr, settings.CACHES)) or 'none'})"
        elif not isinstance(options, dict):
            text = "whose entry or OPTIONS are not a dict"
        elif not served_by(configured):
            code, hint, backend = "E005", HOW_TO, configured.get("BACKEND")
            text = f"whose BACKEND is {backend!r}, neither django-redis nor Django's RedisCache"
        elif client := spread_by(configured):
            code, hint = "E007", ONE_SERVER
            text = f"whose CLIENT_CLASS {client!r} does not keep all keys on one server"
        elif problem := problem_of_cache(alias, configured):
            text = problem
        else:
            return None
        text = without_passwords(f"{self._where} is {alias!r}, {what} {text}.")
        return checks.Error(text, hint=hint, id=f"django_redis_lock.{code}")

    def check(self) -> list[checks.CheckMessage]:
        """Return system check messages about the alias, and about sharing its database."""
        if self.alias and (problem := self._problem(self.alias)):
            return [problem]
        mine = self.databases()
        for alias, configured in settings.CACHES.items():
            # That of LOCATION may exist for the locks alone, unless it is the usual one.
            may_be_cleared = alias != self.alias or alias == "default"
            if may_be_cleared and mine & databases_of(configured):
                text = (
                    f"LOCKS[{self.using!r}] uses the same database as CACHES[{alias!r}], so "
                    f"clearing that cache deletes held locks."
                )
                hint = A_CLUSTER_OF_THEIR_OWN if self.urls else A_DATABASE_OF_THEIR_OWN
                return [checks.Warning(text, hint=hint, id="django_redis_lock.W001")]
        return []

    def databases(self) -> set[Hashable]:
        """Return the databases that the settings name; see ``databases_of``."""
        if not self.alias:
            return {*databases_of(self.urls or self.url)}
        return {*databases_of(settings.CACHES.get(self.alias, {}))} or {self.alias}


def shown(url: Any) -> str:
    """Return the representation of a URL, or of what is in its place, without passwords."""
    return without_passwords(repr(url))


def served_by(configured: dict[str, Any]) -> str | None:
    """Return whose ``RedisCache`` a cache is, or a subclass; ``None`` for other caches."""
    try:
        found = import_string(str(configured.get("BACKEND")))
    except ImportError:
        return None
    bases = [kind for kind in getattr(found, "__mro__", ()) if kind.__name__ == "RedisCache"]
    return next((by for kind in bases if (by := _SERVED_BY.get(kind.__module__))), None)


def pool_of_cache(alias: str, configured: dict[str, Any]) -> redis.ConnectionPool:
    """Return the pool of a cache, to the primary where there are replicas. Raises any exception."""
    if not configured.get("LOCATION"):
        raise ValueError("its LOCATION names no server")
    # ``caches[alias]`` takes a mutex, which stays locked if a signal handler raises at that moment.
    cache: Any = caches.create_connection(alias)
    client = cache.client if served_by(configured) == DJANGO_REDIS else client_of_cache(cache)
    pool: redis.ConnectionPool = client.get_client(write=True).connection_pool
    return pool


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
    if others := [url for url in urls if not isinstance(url, str)]:
        return f"whose LOCATION {others[0]!r} is not a str"
    try:
        pool = pool_of_cache(alias, configured)
        pool.connection_class(**pool.connection_kwargs)
    except Exception as error:  # of any class, even ImportError
        why = without_passwords(str(error))
        return f"from which {served_by(configured)} can't make a connection: {why}"
    for url in urls:
        if problem := ignored_part(url):
            return f"whose LOCATION {url!r} {problem}"
    return None


def _urls_of(configured: dict[str, Any]) -> list[Any]:
    urls = configured.get("LOCATION", "")
    if isinstance(urls, str):
        return BETWEEN_URLS.split(urls)
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
        address = parsed.get("path") or parsed["host"].lower()
        address = "127.0.0.1" if address in ("localhost", "::1") else address
        found.add((address, parsed["port"], parsed["db"]))
    return found
