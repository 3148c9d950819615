"""The backend on the session's server, with options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redis_lock import locks
from django_redis_lock.backends.getset import GetSetLockBackend
from example_project.embedded import EmbeddedServer

GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"
Configure = Callable[..., GetSetLockBackend]


@pytest.fixture
def configure(server: EmbeddedServer, settings: Any) -> Configure:
    def configure(url: str = "", **options: Any) -> GetSetLockBackend:
        entry = {"BACKEND": GETSET, "LOCATION": url or server.url(), "OPTIONS": options}
        settings.LOCKS = {"default": entry}
        backend = locks["default"]
        assert isinstance(backend, GetSetLockBackend)
        return backend

    return configure
