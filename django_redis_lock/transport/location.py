"""Checks LOCATION: an alias of CACHES that is on Redis, a URL, or a list of URLs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.core import checks

from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.caches import (
    DJANGO_REDIS,
    databases_of,
    pool_of_cache,
    problem_of_cache,
    served_by,
    spread_by,
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
        elif not value.startswith(SCHEMES):
            self.alias = value
        elif problem := problem_of(value):
            raise InvalidLockBackend(f"{self._where} is {shown(value)}, which {problem}.")
        else:
            self.url = value

    def _nodes(self, urls: Any) -> list[str]:
        """Return the URLs of some nodes of a cluster, which have to belong to one cluster."""
        if not urls:
            raise InvalidLockBackend(
                f"{self._where} is an empty list; write the URLs of some nodes of the cluster, "
                f"such as ['redis://10.0.0.1:6379', 'redis://10.0.0.2:6379']."
            )
        ways = set()
        for url in urls:
            if not isinstance(url, str) or not url.startswith(("redis://", "rediss://")):
                problem: str | None = "is no URL that begins with redis:// or rediss://"
            elif not (problem := problem_of(url)) and parse_url(url).get("db"):
                problem = "names a database; a cluster has none but 0, so leave it out"
            if problem:
                raise InvalidLockBackend(f"{self._where} has {shown(url)}, which {problem}.")
            parts = urlsplit(url)
            ways.add((parts.scheme, parts.netloc.rpartition("@")[0], parts.query))
        if len(ways) > 1:
            raise InvalidLockBackend(
                f"{self._where} names nodes with different schemes, users, passwords or options; "
                f"write the same in each URL."
            )
        return list(urls)

    def pool(self) -> redis.ConnectionPool:
        """Return the pool of connections to the server. Raises ``InvalidLockBackend``."""
        if self.url:
            return pool_from_url(self.url)
        assert self.alias
        if problem := self._problem(self.alias):
            raise InvalidLockBackend(f"{problem.msg} {problem.hint}")
        configured = settings.CACHES[self.alias]
        self.shares_pool = served_by(configured) == DJANGO_REDIS
        pool = pool_of_cache(self.alias, configured)
        assert pool is not None
        return pool

    def _problem(self, alias: str) -> checks.Error | None:
        """Return an error if locks can't use the alias."""
        configured = settings.CACHES.get(alias)
        code, hint = "E009", CORRECT_THE_ALIAS
        if alias not in settings.CACHES:
            code, hint = "E004", HOW_TO
            known = ", ".join(map(repr, settings.CACHES)) or "none"
            text = f"which is not an alias of CACHES (the aliases are {known})"
        elif not (
            isinstance(configured, dict) and isinstance(configured.get("OPTIONS") or {}, dict)
        ):
            text = "an alias of CACHES whose entry or OPTIONS are not a dict"
        elif not served_by(configured):
            code, hint = "E005", HOW_TO
            text = (
                f"an alias of CACHES whose BACKEND is {configured.get('BACKEND')!r}, neither "
                f"django-redis nor Django's RedisCache"
            )
        elif client := spread_by(configured):
            code, hint = "E007", ONE_SERVER
            text = (
                f"an alias of CACHES whose CLIENT_CLASS {client!r} does not keep all keys on one "
                f"server"
            )
        elif problem := problem_of_cache(alias, configured):
            text = f"an alias of CACHES {problem}"
        else:
            return None
        text = without_passwords(f"{self._where} is {alias!r}, {text}.")
        return checks.Error(text, hint=hint, id=f"django_redis_lock.{code}")

    def check(self) -> list[checks.CheckMessage]:
        """Return system check messages about the alias, and about sharing its database.

        The cache that LOCATION names counts only if it is ``default``, which application code
        clears; any other may exist for the locks alone.
        """
        if self.alias and (problem := self._problem(self.alias)):
            return [problem]
        mine = self.databases()
        for alias, configured in settings.CACHES.items():
            may_be_cleared = alias != self.alias or alias == "default"
            if may_be_cleared and mine & databases_of(configured):
                return [
                    checks.Warning(
                        f"LOCKS[{self.using!r}] keeps its locks in the database of "
                        f"CACHES[{alias!r}], so clearing that cache frees locks that are held.",
                        hint=A_CLUSTER_OF_THEIR_OWN if self.urls else A_DATABASE_OF_THEIR_OWN,
                        id="django_redis_lock.W001",
                    )
                ]
        return []

    def databases(self) -> set[Hashable]:
        """Return the databases that the settings name; see ``databases_of``."""
        if not self.alias:
            return {*databases_of(self.urls or self.url)}
        return {*databases_of(settings.CACHES.get(self.alias, {}))} or {self.alias}


def shown(url: Any) -> str:
    """Return the representation of a URL, or of what is in its place, without passwords."""
    return without_passwords(repr(url))
