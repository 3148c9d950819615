"""The redis backend where LOCATION has to be a cluster."""

from __future__ import annotations

from typing import Any

from django_redis_lock.backends.redis import RedisLockBackend
from django_redis_lock.exceptions import InvalidLockBackend
from django_redis_lock.transport.location import shown


class RedisClusterLockBackend(RedisLockBackend):
    """A ``RedisLockBackend`` that insists on a list of nodes as LOCATION."""

    def configure(self, location: Any, options: dict[str, Any]) -> None:
        if not isinstance(location, list | tuple):
            raise InvalidLockBackend(
                f"LOCKS[{self.alias!r}]['LOCATION'] must be a list of URLs of some nodes of the "
                f"cluster, such as ['redis://10.0.0.1:6379'], not {shown(location)}."
            )
        super().configure(location, options)
