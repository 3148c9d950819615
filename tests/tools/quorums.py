"""Several servers on which a majority decides, for the tests of the quorum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from django.conf import settings
from django.test import override_settings

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer

REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"


class Quorum:
    def __init__(self, servers: list[EmbeddedServer]) -> None:
        self.servers = servers
        self.clients = [
            redis.Redis.from_url(server.url(), decode_responses=True) for server in servers
        ]

    @property
    def urls(self) -> list[str]:
        return [server.url() for server in self.servers]

    def entry(self, **options: Any) -> dict[str, Any]:
        return {"BACKEND": REDLOCK, "LOCATION": self.urls, "OPTIONS": options}

    def values(self, name: str) -> list[str | None]:
        return [client.get(f"lock:{name}") for client in self.clients]

    def tokens(self, name: str) -> list[str | None]:
        return [value and value.split(" ", 1)[0] for value in self.values(name)]

    def resume(self) -> None:
        for server in self.servers:
            if server._process is not None:
                server.resume()


@contextmanager
def started(size: int, *, persist: bool = False) -> Iterator[Quorum]:
    with ExitStack() as stack:
        quorum = Quorum([stack.enter_context(EmbeddedServer(persist=persist)) for _ in range(size)])
        try:
            yield quorum
        finally:
            quorum.resume()
            for client in quorum.clients:
                client.close()


@contextmanager
def in_use(quorum: Quorum, using: str = "redlock", **options: Any) -> Iterator[Quorum]:
    for client in quorum.clients:
        client.flushall()
    options = {"SERVER_TIMEOUT": 2, **options}  # a slow machine is no failure
    with override_settings(LOCKS={**settings.LOCKS, using: quorum.entry(**options)}):
        locks[using].admit()
        try:
            yield quorum
        finally:
            quorum.resume()
            locks.reset()
