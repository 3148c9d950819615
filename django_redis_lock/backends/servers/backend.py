"""What the backends with servers of their own have in common."""

from __future__ import annotations

from collections.abc import Hashable

import redis
from django.core import checks

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.servers.cluster import Cluster
from django_redis_lock.backends.servers.single import SingleServer
from django_redis_lock.transport.location import Location


class ServersLockBackend(BaseLockBackend):
    """Locks on the servers that LOCATION names."""

    location: Location
    servers: SingleServer | Cluster

    @property
    def pool(self) -> redis.ConnectionPool:
        """The connections to the server, or to one of the masters of a cluster."""
        return self.servers.pool

    def databases(self) -> set[Hashable]:
        """Return where the keys are, as far as the settings tell."""
        return self.location.databases()

    def check(self) -> list[checks.CheckMessage]:
        """Return the system check messages about this entry."""
        return self.location.check()

    def open(self) -> None:
        """Import and make what calls need, without connecting. Raises ``InvalidLockBackend``."""
        self.servers.open()

    def close(self) -> None:
        """Close connections and stop threads; the backend can be used again afterwards."""
        self.servers.close()
