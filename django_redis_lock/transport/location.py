"""Checks LOCATION: an alias of CACHES that is on Redis, a URL, or a list of URLs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core import checks

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.caches import (
    databases_of,
    is_of_django,
    is_of_django_redis,
    pool_of_cache,
    problem_of_cache,
    spread_by,
    wrong_type,
)
from django_redis_lock.transport.connections import SCHEMES, pool_from_url, problem_of
from django_redis_lock.transport.redis_py import parse_url

HOW_TO = (
    "Write an alias that django-redis or Django's RedisCache serves, such as "
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
    "into the URL as urllib.parse.quote(password, safe='') writes it, or with django-redis into "
    "its OPTIONS['PASSWORD']."
)
A_DATABASE_OF_THEIR_OWN = (
    "Give the locks a database of their own, such as /1 at the end of the URL, by "
    'an alias of their own, such as CACHES["locks"].'
)
A_CLUSTER_OF_THEIR_OWN = "A cluster has only one database; give the locks servers of their own."


class Location:
    """Where the server of one entry of LOCKS is."""

    shares_pool = False
    """Whether the pool is django-redis's own, which the cache uses, too."""

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
        assert self.alias
        configured = settings.CACHES[self.alias]
        pool = pool_of_cache(self.alias, configured)
        assert pool is not None
        self.shares_pool = is_of_django_redis(configured["BACKEND"])
        return pool

    def _problems(self) -> Iterator[checks.Error]:
        """Yield an error if locks can't use the alias."""
        assert self.alias
        where = f"LOCKS[{self.using!r}]['LOCATION'] is {shown(self.alias)}"
        configured = settings.CACHES.get(self.alias)
        if self.alias not in settings.CACHES:
            text = (
                f"{where}, which is not an alias of CACHES "
                f"(the aliases are {', '.join(map(repr, settings.CACHES)) or 'none'})."
            )
            yield checks.Error(text, hint=HOW_TO, id="django_redis_lock.E004")
        elif problem := wrong_type(configured):
            text = f"{where}, an alias of CACHES {problem}."
            yield checks.Error(text, hint=CORRECT_THE_ALIAS, id="django_redis_lock.E009")
        elif not any(
            kind(configured.get("BACKEND")) for kind in (is_of_django_redis, is_of_django)
        ):
            text = (
                f"{where}, an alias of CACHES whose BACKEND is {configured.get('BACKEND')!r}, "
                f"neither django-redis nor Django's RedisCache."
            )
            yield checks.Error(text, hint=HOW_TO, id="django_redis_lock.E005")
        elif client := spread_by(configured):
            text = (
                f"{where}, an alias of CACHES whose CLIENT_CLASS {client!r} does not keep all keys "
                f"on one server."
            )
            yield checks.Error(text, hint=ONE_SERVER, id="django_redis_lock.E007")
        elif problem := problem_of_cache(self.alias, configured):
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
