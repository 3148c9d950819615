"""The servers of a run, and the settings by which callers find them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel as SentinelClient

from django_redis_lock import locks
from django_redis_lock.backends.clusters.topology import SHARD_SLOTS, TAGS, shard_of
from example_project.embedded import EmbeddedServer
from tests.chaos.plan import DEFAULT_LEASE, LONGEST_LEASE, NAMES
from tests.layouts.servers import Cluster, Sentinel

TIMEOUT = 1.0
"""Seconds after which a reply is taken not to come, by callers and by the pulse."""
DOWN_AFTER = 1.0
NODE_TIMEOUT = 2.0
"""Seconds without an answer after which sentinels and nodes take a master for dead."""
SENTINEL_PERIODS = ("INFO-PERIOD", 500, "PUBLISH-PERIOD", 250)
FAILOVER_TIMEOUT = 2000
"""Milliseconds; with their own of seconds, sentinels take twenty to repair their layout."""
REPLICA_TIMEOUT = 0.5
"""Seconds that replicas have to acknowledge a lock, where it waits for them."""
SLOT = SHARD_SLOTS[shard_of(NAMES[0])]
"""A slot of the cluster that a lock is in."""
PULSE_KEY = "rig-pulse"
PULSE_MS = 60_000


def client(port: int) -> redis.Redis:
    """Return a client that waits for a second, and tries again only if its connection breaks."""
    return redis.Redis(
        port=port,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
    )


def write(port: int, replicas: int = 0) -> None:
    """Write, and have so many replicas acknowledge it. Raises ``RedisError``."""
    with client(port) as one:
        one.set(PULSE_KEY, "", px=PULSE_MS)
        if replicas and one.wait(replicas, round(REPLICA_TIMEOUT * 1000)) < replicas:
            raise redis.ResponseError("too few replicas")


class Site(ABC):
    """Servers that locks are kept on; ``needed`` of them have to work for locks to be available."""

    servers: Sequence[EmbeddedServer]
    needed: int
    rejoins_in = 0.0
    """Seconds after its start in which a server takes no part; no other may fail meanwhile."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the Django settings of callers, without INSTALLED_APPS."""

    @abstractmethod
    def ask(self) -> None:
        """Ask the servers the way callers do. Raises what a client raises."""

    @abstractmethod
    def close(self) -> None:
        """Stop what was started."""

    def prepare(self) -> None:
        """Tell the servers of a quorum that no lock was held before; the settings are in force."""
        if self.rejoins_in:
            locks["default"].admit()


class Independent(Site):
    """Servers that know nothing of each other: one, or a quorum's."""

    def __init__(self, backend: str, count: int = 1, **options: Any) -> None:
        self.needed = count // 2 + 1
        if count > 1:
            self.rejoins_in = options["REJOIN_DELAY"] = LONGEST_LEASE
        self._entry = {"BACKEND": backend, "TIMEOUT": DEFAULT_LEASE, "OPTIONS": options}
        # A server that hangs keeps the threads that ask it until they give up.
        self._pool = ThreadPoolExecutor(count * 40)
        self.servers = [EmbeddedServer(persist=True) for _ in range(count)]
        for server in self.servers:
            server.start()
        self._ports = [server.port for server in self.servers]

    def settings(self) -> dict[str, Any]:
        options = f"socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        urls = [f"redis://127.0.0.1:{port}/0?{options}" for port in self._ports]
        location = urls[0] if len(urls) == 1 else urls
        return {"LOCKS": {"default": {"LOCATION": location, **self._entry}}}

    def ask(self) -> None:
        """Write on all servers until as many have answered as have to work."""
        answered, error = 0, None
        for future in as_completed([self._pool.submit(write, port) for port in self._ports]):
            try:
                future.result()
            except (redis.RedisError, OSError) as raised:
                error = raised
            else:
                answered += 1
            if answered == self.needed:
                return
        assert error is not None
        raise error

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)
            stack.callback(self._pool.shutdown, cancel_futures=True)


class Watched(Site):
    """Servers of which others watch the masters."""

    def __init__(self, layout: Sentinel | Cluster) -> None:
        self.layout = layout
        layout.start()
        self.servers = layout.servers
        self.needed = len(self.servers)

    @abstractmethod
    def master(self) -> EmbeddedServer:
        """Return a master that keeps locks."""

    @abstractmethod
    def fail_over(self) -> None:
        """Have a replica take over from that master in good order."""

    def close(self) -> None:
        self.layout.stop()


class SentinelSite(Watched):
    """A master with replicas under three sentinels; locks may have to wait for all replicas."""

    layout: Sentinel

    def __init__(self, replicas: int = 1, *, waits: bool = False) -> None:
        super().__init__(Sentinel(replicas=replicas, down_after=DOWN_AFTER))
        self._replicas = replicas if waits else 0
        for sentinel in self.layout.sentinels:
            with client(sentinel.port) as one:
                one.execute_command("SENTINEL", "DEBUG", *SENTINEL_PERIODS)
                one.sentinel_set(self.layout.service, "failover-timeout", FAILOVER_TIMEOUT)
        self._sentinels = SentinelClient(
            [("127.0.0.1", server.port) for server in self.layout.sentinels], socket_timeout=TIMEOUT
        )

    def settings(self) -> dict[str, Any]:
        wait = {"REPLICAS": self._replicas, "REPLICA_TIMEOUT": REPLICA_TIMEOUT}
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE, OPTIONS=wait if self._replicas else {})
        for cache in found["CACHES"].values():
            if "OPTIONS" in cache:
                cache["OPTIONS"] |= {"SOCKET_TIMEOUT": TIMEOUT, "SOCKET_CONNECT_TIMEOUT": TIMEOUT}
        return found

    def ask(self) -> None:
        """Ask for the master, and write there."""
        _, port = self._sentinels.discover_master(self.layout.service)
        write(port, self._replicas)

    def master(self) -> EmbeddedServer:
        return self.layout.master

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

    def settings(self) -> dict[str, Any]:
        found = self.layout.locks(TIMEOUT=DEFAULT_LEASE)
        options = f"?socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}"
        for entry in found["LOCKS"].values():
            entry["LOCATION"] = [url + options for url in entry["LOCATION"]]
        return found

    def ask(self) -> None:
        """Write to the slot of each lock."""
        nodes = [ClusterNode("127.0.0.1", server.port) for server in self.servers]
        timeouts = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        try:
            with contextlib.closing(RedisCluster(startup_nodes=nodes, **timeouts)) as one:
                for tag in {TAGS[shard_of(name)] for name in NAMES}:
                    one.set(f"{{{tag}}}{PULSE_KEY}", "", px=PULSE_MS)
        except (AttributeError, RedisClusterException) as error:  # it knows of no node any more
            raise redis.ConnectionError(str(error)) from error

    def master(self) -> EmbeddedServer:
        return self.layout.master_of(SLOT)

    def fail_over(self) -> None:
        self.layout.failover(SLOT)
