"""Locks on one Redis or Valkey server, or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django_redis_lock.backends.renewal import renewer
from django_redis_lock.backends.servers import ScriptedServer, ServersLockBackend
from django_redis_lock.backends.settings import read_choice, read_poll_interval, read_replicas
from django_redis_lock.protocol.calls import Release
from django_redis_lock.support.arguments import WAITING_SCHEMES
from django_redis_lock.transport.location import Location

if TYPE_CHECKING:
    from django_redis_lock.backends.clusters.servers import Cluster
    from django_redis_lock.protocol.waiting import WaiterRegistry


class RedisLockBackend(ServersLockBackend):
    """Locks on one server or a cluster, with a Lua script for each operation.

    LOCATION is an alias of CACHES that django-redis (its Sentinel client included) or Django's
    RedisCache serves, a URL, or, for a cluster, a list of URLs of some of its nodes.

    OPTIONS["WAIT"] says how waiters learn of their turn: ``queue`` by pub/sub, ``blpop`` from a
    list, ``poll`` with a heartbeat every OPTIONS["POLL_INTERVAL"] seconds. All wait in one queue,
    and are served in order of arrival. In a cluster all wait by ``queue``.

    OPTIONS["REPLICAS"] is how many replicas must have a lock before it counts as acquired, and
    OPTIONS["REPLICA_TIMEOUT"] how many seconds they may take.
    """

    options: ClassVar[tuple[str, ...]] = ("WAIT", "POLL_INTERVAL", "REPLICAS", "REPLICA_TIMEOUT")
    schemes: ClassVar[tuple[str, ...]] = WAITING_SCHEMES
    runs_scripts: ClassVar[bool] = True
    servers: ScriptedServer | Cluster

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        self.location = Location("default" if location is None else location, self.alias)
        self.wait = read_choice(options, "WAIT", WAITING_SCHEMES, self.alias)
        self.replicas = read_replicas(options, self.alias)
        interval = read_poll_interval(options, self.alias)
        if self.location.urls:
            from django_redis_lock.backends.clusters.servers import Cluster
            from django_redis_lock.backends.clusters.topology import SHARDS

            self.servers = Cluster(self.location, self.key_prefix, self.replicas)
            self.servers.check_scheme(self.wait)
            self.indexes = SHARDS
        else:
            self.servers = ScriptedServer(self.location, self.key_prefix, self.replicas, interval)

    def make_registry(self, scheme: str) -> WaiterRegistry:
        def give_back(call: Release, seconds: float) -> None:  # from a former waiter
            renewer.withdraw(call, self, seconds, at_once=True)

        return self.servers.make_registry(scheme, give_back)
