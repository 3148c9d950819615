"""The keys of a lock on the session's server."""

from __future__ import annotations

import pytest
import redis

from tests.transport.scripts import Keys


@pytest.fixture
def keys(client: redis.Redis, name: str) -> Keys:
    return Keys(client, name)
