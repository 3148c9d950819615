"""Checks LOCATION: an alias of CACHES that uses django-redis, a URL, or a list of URLs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core import checks

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.text import keep_secrets, without_passwords
from django_redis_lock.transport.connections import pool_from_url
from django_redis_lock.transport.redis_py import parse_url
from django_redis_lock.transport.urls import SCHEMES, check_pool, problem_of

HOW_TO = (
    "Install django-redis and write an alias that uses it, such as "
    'CACHES = {"locks": {"BACKEND": "django_redis.cache.RedisCache", '
    '"LOCATION": "redis://127.0.0.1:6379/1"}} with LOCKS = {"default": {"BACKEND": '
    '"django_redis_lock.backends.redis.RedisLockBackend", "LOCATION": "locks"}}, '
    'or a URL as LOCATION, such as "redis://127.0.0.1:6379/1".'
)
ONE_SERVER = (
    "Write the URL of one server as LOCATION, or an alias with django-redis's DefaultClient, "
    "HerdClient or SentinelClient. For several servers write a list: of nodes of a cluster, or of "
    'independent servers with BACKEND "django_redis_lock.backends.redlock.RedlockLockBackend".'
)
CORRECT_THE_ALIAS = (
    "Correct that entry of CACHES. A password with other characters than letters and digits goes "
    "into its OPTIONS['PASSWORD'], or into the URL as urllib.parse.quote(password, safe='') writes "
    "it."
)
A_DATABASE_OF_THEIR_OWN = (
    "Give the locks a database of their own, such as /1 at the end of the URL, by "
    'an alias of their own, such as CACHES["locks"].'
)
A_CLUSTER_OF_THEIR_OWN = "A cluster has only one database; give the locks servers of their own."


class Location:
    """Where the server of one entry of LOCKS is."""

    def __init__(self, value: Any, using: str) -> None:
        self.using = using
        self.urls: list[str] | None = None
        if isinstance(value, list | tuple):
            self.urls, self.url, self.alias = check_urls(value, using), None, None
            return
        if not isinstance(value, str) or not value:
            raise InvalidLockBackend(
                f"LOCKS[{using!r}]['LOCATION'] must be an alias of CACHES, a URL, or a list of "
                f"the URLs of a cluster's nodes, not {value!r}."
            )
        self.url = value if value.startswith(SCHEMES) else None
        self.alias = None if self.url else value
        where = f"LOCKS[{using!r}]['LOCATION']"
        if self.alias and "://" in self.alias:
            raise InvalidLockBackend(
                f"{where} has an unknown scheme: "
                f"{self.alias.split('://')[0]}://; use one of {', '.join(SCHEMES)}."
            )
        if self.alias and "/" in self.alias and self.alias not in settings.CACHES:
            raise InvalidLockBackend(
                f"{where} is {shown(value)}, which is neither an alias of CACHES nor a URL; a URL "
                f"begins with one of {', '.join(SCHEMES)}."
            )
        if self.url and (problem := problem_of(self.url)):
            raise InvalidLockBackend(f"{where} is {shown(value)}, which {problem}.")

    def pool(self) -> redis.ConnectionPool:
        """Return the pool of connections to the server. Raises ``InvalidLockBackend``."""
        if self.url:
            return pool_from_url(self.url)
        for problem in self._problems():
            raise InvalidLockBackend(f"{problem.msg} {problem.hint}")
        from django_redis import get_redis_connection

        assert self.alias
        pool: redis.ConnectionPool = get_redis_connection(self.alias).connection_pool
        return pool

    def _problems(self) -> Iterator[checks.Error]:
        """Yield an error if locks can't use the alias."""
        where = f"LOCKS[{self.using!r}]['LOCATION'] is {shown(self.alias)}"
        configured = settings.CACHES.get(self.alias)
        if self.alias not in settings.CACHES:
            text = (
                f"{where}, which is not an alias of CACHES "
                f"(the aliases are {', '.join(map(repr, settings.CACHES)) or 'none'})."
            )
            yield checks.Error(text, hint=HOW_TO, id="django_redis_lock.E004")
        elif problem := _wrong_type(configured):
            text = f"{where}, an alias of CACHES {problem}."
            yield checks.Error(text, hint=CORRECT_THE_ALIAS, id="django_redis_lock.E009")
        elif not _is_served_by_django_redis(configured.get("BACKEND", "")):
            text = (
                f"{where}, an alias of CACHES whose BACKEND is {configured.get('BACKEND')!r}, "
                f"not django-redis."
            )
            yield checks.Error(text, hint=HOW_TO, id="django_redis_lock.E005")
        elif not _reaches_one_server(client := _client_class(configured)):
            text = (
                f"{where}, an alias of CACHES whose CLIENT_CLASS {client!r} does not keep all keys "
                f"on one server."
            )
            yield checks.Error(text, hint=ONE_SERVER, id="django_redis_lock.E007")
        elif problem := _problem_of_alias(self.alias, configured):
            text = without_passwords(f"{where}, an alias of CACHES {problem}.")
            yield checks.Error(text, hint=CORRECT_THE_ALIAS, id="django_redis_lock.E009")

    def check(self) -> list[checks.CheckMessage]:
        """Return system check messages about the alias, and about sharing its database."""
        problems: list[checks.CheckMessage] = [*self._problems()] if self.alias else []
        if problems:
            return problems
        sharing = self._sharing()
        if not sharing:
            return []
        return [
            checks.Warning(
                f"LOCKS[{self.using!r}] keeps its locks in the database of "
                f"CACHES[{sharing!r}], so clearing that cache frees locks that are held.",
                hint=A_CLUSTER_OF_THEIR_OWN if self.urls else A_DATABASE_OF_THEIR_OWN,
                id="django_redis_lock.W001",
            )
        ]

    def databases(self) -> set[Hashable]:
        """Return the databases that the settings name; see ``databases_of``."""
        if not self.alias:
            return {*databases_of({"LOCATION": self.urls or self.url})}
        return {*databases_of(settings.CACHES.get(self.alias, {}))} or {self.alias}

    def _sharing(self) -> str | None:
        """Return the alias of a cache in the same database, if there is one.

        The alias that LOCATION names counts only if it is ``default``, which application code
        clears; any other may exist for the locks alone.
        """
        mine = self.databases()
        for alias, configured in settings.CACHES.items():
            if alias == self.alias and alias != "default":
                continue
            if mine & databases_of(configured):
                return str(alias)
        return None


def check_urls(value: Any, using: str) -> list[str]:
    """Return the URLs of some nodes of a cluster.

    Raises ``InvalidLockBackend`` if they can't belong to one cluster.
    """
    where = f"LOCKS[{using!r}]['LOCATION']"
    if not value:
        raise InvalidLockBackend(
            f"{where} is an empty list; write the URLs of some nodes of the cluster, such as "
            f"['redis://10.0.0.1:6379', 'redis://10.0.0.2:6379']."
        )
    ways = set()
    for url in value:
        if not isinstance(url, str) or not url.startswith(("redis://", "rediss://")):
            raise InvalidLockBackend(
                f"{where} has {shown(url)}; a list names the nodes of a cluster, each by a URL "
                f"that begins with redis:// or rediss://."
            )
        if problem := problem_of(url):
            raise InvalidLockBackend(f"{where} has {shown(url)}, which {problem}.")
        kwargs = parse_url(url)
        if kwargs.get("db"):
            raise InvalidLockBackend(
                f"{where} has {shown(url)}; a cluster has no database but 0, so leave it out."
            )
        parts = urlsplit(url)
        ways.add((parts.scheme, parts.netloc.rpartition("@")[0], parts.query))
    if len(ways) > 1:
        raise InvalidLockBackend(
            f"{where} names nodes with different schemes, users, passwords or options; write the "
            f"same in each URL."
        )
    return list(value)


def shown(url: Any) -> str:
    """Return the representation of a URL, or of what is in its place, without passwords."""
    return without_passwords(repr(url))


def _is_served_by_django_redis(backend: Any) -> bool:
    from django.utils.module_loading import import_string

    try:
        from django_redis.cache import RedisCache
    except ImportError:
        return False
    try:
        found = import_string(str(backend))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, RedisCache)


def _wrong_type(configured: Any) -> str | None:
    """Return what is not a dict although it must be, in an entry of CACHES."""
    if not isinstance(configured, dict):
        return f"whose entry is a {type(configured).__name__}, not a dict"
    options = configured.get("OPTIONS") or {}
    if not isinstance(options, dict):
        return f"whose OPTIONS are a {type(options).__name__}, not a dict"
    return None


def _problem_of_alias(alias: Any, configured: dict[str, Any]) -> str | None:
    """Return why django-redis can't make connections from an entry of CACHES."""
    from django_redis import get_redis_connection

    for url in _urls_of(configured):
        problem = problem_of(url, by_django_redis=True) if isinstance(url, str) else "is not a str"
        if problem:
            return f"whose LOCATION {shown(url)} {problem}"
    try:
        check_pool(get_redis_connection(alias).connection_pool)
    except Exception as error:  # of any class, even ImportError
        return f"from which django-redis can't make a connection: {keep_secrets(error)}"
    return None


def _urls_of(configured: dict[str, Any]) -> list[Any]:
    urls = configured.get("LOCATION", "")
    if isinstance(urls, str):
        return urls.split(",")
    return [*urls] if isinstance(urls, list | tuple) else [urls]


def _client_class(configured: dict[str, Any]) -> str:
    default = "django_redis.client.DefaultClient"
    return str((configured.get("OPTIONS") or {}).get("CLIENT_CLASS", default))


def _reaches_one_server(client: str) -> bool:
    """Whether a client class of django-redis gives access to the connections of one server."""
    from django.utils.module_loading import import_string
    from django_redis.client import ShardClient

    try:
        found = import_string(client)
    except ImportError:
        return True  # django-redis raises a better error
    return getattr(found, "get_client", None) not in (None, ShardClient.get_client)


def databases_of(configured: Any) -> set[tuple[Any, ...]]:
    """Return the databases of a URL or an entry of CACHES, as (host or path, port, db)."""
    urls = configured.get("LOCATION", "") if isinstance(configured, dict) else configured
    if isinstance(urls, str):
        urls = [url for part in urls.split(";") for url in part.split(",")]
    if not isinstance(urls, list | tuple):
        return set()  # other cache backends have other kinds of LOCATION
    found: set[tuple[Any, ...]] = set()
    for url in urls:
        try:
            parsed = parse_url(url)
        except (ValueError, AttributeError, TypeError):
            continue  # not the URL of a Redis server
        if "path" in parsed:
            found.add((parsed["path"], None, parsed.get("db", 0)))
        else:
            host = parsed.get("host", "localhost").lower()
            host = "127.0.0.1" if host in ("localhost", "::1") else host
            found.add((host, parsed.get("port", 6379), parsed.get("db", 0)))
    return found
