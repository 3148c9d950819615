"""Sites on which a replica takes over from a master: Sentinel and Cluster."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.sentinel import Sentinel as SentinelClient

from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Cluster, Sentinel
from tests.rig.plan import DEFAULT_LEASE
from tests.rig.sites import PULSE_KEY, PULSE_MS, TIMEOUT, Site, client, write

DOWN_AFTER = 1.0
NODE_TIMEOUT = 2.0
"""Seconds without an answer after which sentinels and nodes take a master for dead."""
SCAN_BEATS = 20
"""Beats from one search for the slots in use to the next."""


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
        self._beats = 0
        self._tags: set[str] = set()

    def settings(self) -> dict[str, Any]:
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE)
        options = f"?socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        for entry in found["LOCKS"].values():
            entry["LOCATION"] = [url + options for url in entry["LOCATION"]]
        return found

    def ask(self) -> None:
        """Write beside each lock."""
        if self._beats % SCAN_BEATS == 0:
            with contextlib.suppress(redis.RedisError, OSError):
                self._find_tags()
        self._beats += 1
        try:
            if self._client is None:
                self._client = self._connected()
            for tag in self._tags or {"any"}:
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

    def _find_tags(self) -> None:
        for server in self.masters():
            with client(server.port) as one:
                for key in one.scan_iter("*lock*"):
                    self._tags.update(re.findall(r"\{([^}]+)\}", key.decode())[:1])

    def slot(self) -> int:
        """Return a slot that locks are in."""
        return key_slot(f"{{{min(self._tags)}}}".encode()) if self._tags else 0

    def master(self) -> EmbeddedServer:
        return self.layout.master_of(self.slot())

    def masters(self) -> Sequence[EmbeddedServer]:
        return self.layout.masters()

    def fail_over(self) -> None:
        self.layout.failover(self.slot())

    def move(self) -> None:
        """Move the slot to another master."""
        here = self.master()
        there = next(server for server in self.masters() if server is not here)
        self.layout.move_slot(self.slot(), there)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        super().close()
