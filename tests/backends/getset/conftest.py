"""The backend on the session's server, with options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redis_lock import locks
from django_redis_lock.backends.getset import GetSetLockBackend
from example_project.embedded import EmbeddedServer
from tests.tools.proxy import Proxy

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"


@pytest.fixture
def configure(server: EmbeddedServer, settings: Any) -> Callable[..., GetSetLockBackend]:
    """Return a function that makes the default alias a GETSET backend with given options."""

    def configure(url: str = "", **options: Any) -> GetSetLockBackend:
        entry = {"BACKEND": GETSET, "LOCATION": url or server.url(), "OPTIONS": options}
        settings.LOCKS = {"default": entry}
        backend = locks["default"]
        assert isinstance(backend, GetSetLockBackend)
        return backend

    return configure


Configure = Callable[..., GetSetLockBackend]


@pytest.fixture
def proxied(server: EmbeddedServer, configure: Configure) -> Iterator[Callable[..., Proxy]]:
    """Return a function that puts a proxy before the server, for a format."""
    with Proxy(server.port) as proxy:

        def through(form: str) -> Proxy:
            configure(f"redis://127.0.0.1:{proxy.port}/0", FORMAT=form)
            return proxy

        yield through
