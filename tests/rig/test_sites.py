"""What is left on a server when no lock is in use."""

from __future__ import annotations

import json

import redis

from example_project.embedded import EmbeddedServer
from tests.rig.sites import leftovers


def test_places_of_killed_waiters_are_excused(server: EmbeddedServer, client: redis.Redis) -> None:
    """Not those of other processes, and none without an end."""
    record = json.dumps({"pid": 7}, separators=(",", ":"))
    client.rpush("lock-queue:anvil", f"channel token 2000 {record}")
    assert leftovers([server], {7}, strict=True) == ["lock-queue:anvil"]
    client.pexpire("lock-queue:anvil", 60_000)
    assert leftovers([server], {7}, strict=True) == []
    assert leftovers([server], {8}, strict=True) == ["lock-queue:anvil"]
    assert leftovers([server], {8}, strict=False) == []
