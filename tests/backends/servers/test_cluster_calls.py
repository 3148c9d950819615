"""Calls on locks of several nodes, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest

from django_redis_lock.backends.servers.cluster import Cluster
from django_redis_lock.backends.servers.cluster_clients import Part
from django_redis_lock.backends.servers.sharding import shard_of
from django_redis_lock.protocol.calls import Renew
from django_redis_lock.transport.location import Location
from tests.tools import eventually


class LateClient:
    """Sends the first part last, as when it is redirected, or its node is slow to connect to."""

    def __init__(self) -> None:
        self.began = 0.0

    def call_all(self, parts: Sequence[Part]) -> list[Any]:
        for number, (_, packed) in enumerate([*parts, parts[0]]):
            packed.sending()
            if not number:
                self.began = monotonic()
                eventually(lambda: monotonic() > self.began)
        return [[30_000] for _ in parts]


class LateAsyncClient(LateClient):
    async def call_all(self, parts: Sequence[Part]) -> list[Any]:  # type: ignore[override]
        return LateClient.call_all(self, parts[::-1])


@pytest.mark.parametrize("under_asyncio", [False, True])
def test_renewed_leases_count_from_the_first_sending(
    under_asyncio: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were sent before one that is sent late do not end as late as that."""
    location = Location(["redis://127.0.0.1:1"], "default")
    cluster = Cluster(location, "lock", None, lambda name, token, seconds: None)
    client = LateAsyncClient() if under_asyncio else LateClient()
    monkeypatch.setattr(cluster, "async_client" if under_asyncio else "client", client)
    names = {shard_of(name): name for name in ("a", "b", "c", "d")}
    assert len(names) > 1
    call = Renew([(name, "token", 30_000) for name in names.values()])
    for _ in range(2):
        before = monotonic()
        answers = asyncio.run(cluster.acall(call)) if under_asyncio else cluster.call(call)
        assert answers == [30_000 for _ in names]
        assert before <= call.sent_at <= client.began
