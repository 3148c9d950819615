"""The keys of a lock on the session's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from example_project.embedded import EmbeddedServer
from tests.transport.scripts import Keys


@pytest.fixture
def keys(client: redis.Redis, name: str) -> Keys:
    return Keys(client, name)


@pytest.fixture
def without(keys: Keys, server: EmbeddedServer) -> Iterator[Callable[[str], Keys]]:
    """Return the keys for a user who may neither call a command nor publish."""
    with redis.Redis(
        port=server.port, username="limited", password="", decode_responses=True
    ) as client:

        def limit(command: str) -> Keys:
            keys.client.acl_setuser(
                "limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{command}"]
            )
            return Keys(client, keys.prefix)

        yield limit
    keys.client.acl_deluser("limited")
