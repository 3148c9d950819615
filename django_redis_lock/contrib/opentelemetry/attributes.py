"""What spans and metrics say of a lock, its backend and its holder."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.contrib.opentelemetry import names
from django_redis_lock.protocol.records import Holder

Attributes = dict[str, AttributeValue]


def of_metric(backend: BaseLockBackend, name: str) -> Attributes:
    """Return attributes with few values: the lock's group, not its name."""
    return of_group(backend, backend.operators.group(name))


def of_group(backend: BaseLockBackend, group: str) -> Attributes:
    """Return attributes of all locks of a group."""
    return {
        names.ALIAS: backend.alias,
        names.BACKEND: type(backend).__name__,
        names.GROUP: group,
    }


def of_span(backend: BaseLockBackend, name: str) -> Attributes:
    """Return attributes of a span about a lock."""
    return {**of_metric(backend, name), names.NAME: name}


def of_server(backend: BaseLockBackend) -> Attributes:
    """Return where the lock is kept, as far as the settings name one server."""
    databases = backend.databases()
    if not databases:
        return {}
    found: Attributes = {names.DB_SYSTEM: "redis"}
    (database, *others) = databases
    if not others and isinstance(database, tuple):
        address, port, number = database
        found |= {names.SERVER_ADDRESS: address, names.DB_NAMESPACE: str(number)}
        if port is not None:
            found[names.SERVER_PORT] = port
    return found


def of_holder(holder: Holder) -> Attributes:
    """Return who holds a lock, without what is not known."""
    told = {
        names.HOLDER_TASK_ID: holder.task_id,
        names.HOLDER_TASK_NAME: holder.task_name,
        names.HOLDER_HOST: holder.host,
        names.HOLDER_PID: holder.pid,
        names.HOLDER_HELD_FOR: holder.held_for,
        names.WAITERS: holder.waiters,
    }
    return {key: value for key, value in told.items() if value is not None}
