"""Names of spans, metrics and attributes, which dashboards rely on."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from django_redis_lock.backends.base import BaseLockBackend

Attributes = dict[str, AttributeValue]

SCOPE = "django_redis_lock"

WAIT = "lock wait"
HOLD = "lock hold"

NAME = "django_redis_lock.name"
ALIAS = "django_redis_lock.alias"
BACKEND = "django_redis_lock.backend"
GROUP = "django_redis_lock.group"
OUTCOME = "django_redis_lock.outcome"
FENCE = "django_redis_lock.fence"
ERROR_TYPE = "error.type"

WAIT_DURATION = "django_redis_lock.wait.duration"
HOLD_DURATION = "django_redis_lock.hold.duration"
HELD = "django_redis_lock.held"
WAITING = "django_redis_lock.waiting"
OLDEST_HOLD = "django_redis_lock.hold.oldest"
OLDEST_WAIT = "django_redis_lock.wait.oldest"
LEASE_USED = "django_redis_lock.lease.used"


def attributes_of(backend: BaseLockBackend, group: str) -> Attributes:
    """Return the attributes of all locks of a group."""
    return {ALIAS: backend.alias, BACKEND: type(backend).__name__, GROUP: group}
