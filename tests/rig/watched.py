"""Sites on which a replica takes over from a master: Sentinel and Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel as SentinelClient

from django_redis_lock.backends.servers.sharding import SHARD_SLOTS, TAGS, shard_of
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Cluster, Sentinel
from tests.rig.plan import ALL_NAMES, DEFAULT_LEASE
from tests.rig.sites import PULSE_KEY, PULSE_MS, TIMEOUT, Site, write

DOWN_AFTER = 1.0
NODE_TIMEOUT = 2.0
"""Seconds without an answer after which sentinels and nodes take a master for dead."""
SLOT = SHARD_SLOTS[shard_of(ALL_NAMES[0])]
"""A slot of the cluster that a lock is in."""


class Watched(Site):
    """Servers of which others watch the masters."""

    def __init__(self, layout: Sentinel | Cluster) -> None:
        self.layout = layout
        layout.start()
        self.servers = layout.servers
        self.needed = len(self.servers)

    def master(self) -> EmbeddedServer:
        """Return a master that keeps locks."""
        raise NotImplementedError

    def fail_over(self) -> None:
        """Have a replica take over from that master in good order."""
        raise NotImplementedError

    def close(self) -> None:
        self.layout.stop()


class SentinelSite(Watched):
    """A master and a replica under three sentinels."""

    layout: Sentinel

    def __init__(self) -> None:
        super().__init__(Sentinel(replicas=1, down_after=DOWN_AFTER))
        self._sentinels = SentinelClient(
            [("127.0.0.1", server.port) for server in self.layout.sentinels],
            socket_timeout=TIMEOUT,
        )

    def settings(self) -> dict[str, Any]:
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE)
        for cache in found["CACHES"].values():
            if "OPTIONS" in cache:
                cache["OPTIONS"] |= {"SOCKET_TIMEOUT": TIMEOUT, "SOCKET_CONNECT_TIMEOUT": TIMEOUT}
        return found

    def ask(self) -> None:
        """Ask for the master, and write there."""
        _, port = self._sentinels.discover_master(self.layout.service)
        write(port)

    def master(self) -> EmbeddedServer:
        return self.layout.master

    def masters(self) -> Sequence[EmbeddedServer]:
        return [self.layout.master]

    def fail_over(self) -> None:
        self.layout.failover()

    def close(self) -> None:
        for sentinel in self._sentinels.sentinels:
            sentinel.close()
        super().close()


class ClusterSite(Watched):
    """Three masters with a replica each."""

    layout: Cluster

    def __init__(self) -> None:
        super().__init__(Cluster(node_timeout=NODE_TIMEOUT))
        self._client: RedisCluster | None = None

    def settings(self) -> dict[str, Any]:
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE)
        options = f"?socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        for entry in found["LOCKS"].values():
            entry["LOCATION"] = [url + options for url in entry["LOCATION"]]
        return found

    def ask(self) -> None:
        """Write to the slot of each lock."""
        try:
            if self._client is None:
                self._client = self._connected()
            for tag in {TAGS[shard_of(name)] for name in ALL_NAMES}:
                self._client.set(f"{{{tag}}}{PULSE_KEY}", "", px=PULSE_MS)
        except (redis.RedisError, OSError, AttributeError) as error:
            if self._client is not None:
                self._client.close()
                self._client = None
            if isinstance(error, AttributeError):  # redis-py's, when it knows of no node any more
                raise redis.ConnectionError(str(error)) from error
            raise

    def _connected(self) -> RedisCluster:
        return RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", server.port) for server in self.servers],
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            require_full_coverage=False,
        )

    def master(self) -> EmbeddedServer:
        return self.layout.master_of(SLOT)

    def masters(self) -> Sequence[EmbeddedServer]:
        return self.layout.masters()

    def fail_over(self) -> None:
        self.layout.failover(SLOT)

    def move(self) -> None:
        """Move the slot to another master."""
        here = self.master()
        there = next(server for server in self.masters() if server is not here)
        self.layout.move_slot(SLOT, there)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        super().close()
