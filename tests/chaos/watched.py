"""Sites on which a replica takes over from a master: Sentinel and Cluster."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.sentinel import Sentinel as SentinelClient

from example_project.embedded import EmbeddedServer
from tests.chaos.site import PULSE_KEY, PULSE_MS, TIMEOUT, Site, client, leftovers
from tests.layouts import servers
from tests.layouts.servers import Cluster, Sentinel
from tests.soak.plan import DEFAULT_LEASE

DOWN_AFTER = 1.0
NODE_TIMEOUT = 2.0
"""Seconds without an answer after which a master is taken for dead, by sentinels and by nodes."""
ALL = 1000
SCAN_BEATS = 20
"""Beats from one look at which slots are in use to the next."""


class Watched(Site):
    """Servers of which others watch the masters, each of which is needed."""

    needed = ALL

    def master(self) -> EmbeddedServer:
        """Return a master that keeps locks."""
        raise NotImplementedError

    def fail_over(self) -> None:
        """Have a replica take over in good order."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until all servers agree on who is who."""
        raise NotImplementedError


class SentinelSite(Watched):
    """A master and a replica under three sentinels."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = entry
        self.layout = Sentinel(replicas=1, down_after=DOWN_AFTER)
        self.layout.start()
        self.servers = self.layout.servers
        self._sentinels = SentinelClient(
            [("127.0.0.1", server.port) for server in self.layout.sentinels],
            socket_timeout=TIMEOUT,
        )

    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE, **self._entry)
        for cache in found["CACHES"].values():
            if "OPTIONS" in cache:
                cache["OPTIONS"] |= {"SOCKET_TIMEOUT": TIMEOUT, "SOCKET_CONNECT_TIMEOUT": TIMEOUT}
        return found

    def ask(self) -> None:
        """Ask who is the master, and write there."""
        _, port = self._sentinels.discover_master(self.layout.service)
        with client(port) as one:
            one.set(PULSE_KEY, "", px=PULSE_MS)

    def master(self) -> EmbeddedServer:
        """Return the master."""
        return self.layout.master

    def fail_over(self) -> None:
        """Have a replica take over."""
        before = self.layout.master
        with servers.client(self.layout.sentinels[0]) as one:
            servers.agree(lambda: _asks_for_failover(one, self.layout.service))
        servers.agree(lambda: self.layout.master is not before)

    def settle(self) -> None:
        """Wait until the sentinels agree."""
        self.layout.settle()

    def leftovers(self) -> list[str]:
        """Return the keys that are left on the master."""
        return leftovers([self.layout.master])

    def close(self) -> None:
        """End what was started."""
        for sentinel in self._sentinels.sentinels:
            sentinel.close()
        self.layout.stop()


class ClusterSite(Watched):
    """Three masters with a replica each."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = entry
        self.layout = Cluster(node_timeout=NODE_TIMEOUT)
        self.layout.start()
        self.servers = self.layout.servers
        self._client: RedisCluster | None = None
        self._beats = 0
        self._tags: set[str] = set()

    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE, **self._entry)
        options = f"?socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        for entry in found["LOCKS"].values():
            entry["LOCATION"] = [url + options for url in entry["LOCATION"]]
        return found

    def ask(self) -> None:
        """Write beside each lock."""
        if self._beats % SCAN_BEATS == 0:
            with contextlib.suppress(redis.RedisError, OSError):
                self._tags |= {tag for key in self._lock_keys() if (tag := _tag(key))}
        self._beats += 1
        try:
            if self._client is None:
                nodes = [ClusterNode("127.0.0.1", server.port) for server in self.servers]
                self._client = RedisCluster(
                    startup_nodes=nodes,
                    socket_timeout=TIMEOUT,
                    socket_connect_timeout=TIMEOUT,
                    require_full_coverage=False,
                )
            for tag in self._tags or {"any"}:
                self._client.set(f"{{{tag}}}{PULSE_KEY}", "", px=PULSE_MS)
        except (redis.RedisError, OSError, AttributeError) as error:
            if self._client is not None:
                self._client.close()
                self._client = None
            if isinstance(error, AttributeError):  # where it knows of no node any more
                raise redis.ConnectionError(str(error)) from error
            raise

    def _lock_keys(self) -> list[str]:
        keys = []
        for server in self.layout.masters():
            with client(server.port) as one:
                keys += [key.decode() for key in one.scan_iter("*lock*")]
        return keys

    def slot(self) -> int:
        """Return a slot that locks are in."""
        return key_slot(f"{{{min(self._tags)}}}".encode()) if self._tags else 0

    def master(self) -> EmbeddedServer:
        """Return the master of that slot."""
        return self.layout.master_of(self.slot())

    def fail_over(self) -> None:
        """Have a replica take over that slot."""
        self.layout.failover(self.slot())

    def move(self) -> None:
        """Move that slot to another master."""
        here = self.master()
        there = next(server for server in self.layout.masters() if server is not here)
        self.layout.move_slot(self.slot(), there)

    def settle(self) -> None:
        """Wait until the nodes agree."""
        self.layout.settle()

    def leftovers(self) -> list[str]:
        """Return the keys that are left on the masters."""
        return leftovers(self.layout.masters())

    def close(self) -> None:
        """End what was started."""
        if self._client is not None:
            self._client.close()
        self.layout.stop()


def _asks_for_failover(one: redis.Redis, service: str) -> bool:
    with contextlib.suppress(redis.ResponseError):  # while it knows no good replica
        one.execute_command("SENTINEL", "FAILOVER", service)
        return True
    return False


def _tag(key: str) -> str:
    found = re.search(r"\{([^}]+)\}", key)
    return found.group(1) if found else ""
