"""The examinations of an entry's settings, without asking a server."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.project import worker_threads
from django_redis_lock.support.text import without_passwords

UNLIMITED = 1 << 16


def examine_settings(backend: BaseLockBackend) -> Iterator[Finding]:
    """Turn the system checks of an entry into findings."""
    messages = backend.check()
    for message in messages:
        yield Finding(
            FAIL if message.is_serious() else WARN,
            "settings",
            without_passwords(f"{message.msg} ({message.id})"),
            message.hint or "",
        )
    if not messages:
        yield Finding(OK, "settings", "valid; no cache shares the database of the locks")
    if backend.timeout is None:
        yield Finding(
            WARN,
            "lease",
            "TIMEOUT is None: a lock whose holder dies stays held until somebody releases it",
            "Write a number of seconds: the lease is renewed for as long as its holder lives.",
        )


def examine_pool(pool: redis.ConnectionPool) -> Iterator[Finding]:
    """Are there timeouts and enough connections?"""
    # An unopened connection also has the defaults of this version of redis-py.
    timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    if timeout:
        yield Finding(OK, "timeout", f"a server that hangs is given up after {timeout:g} s")
    else:
        yield Finding(
            WARN,
            "timeout",
            "none: a server that hangs hangs its callers too",
            'Write "OPTIONS": {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5} in CACHES, or '
            "socket_timeout=5 into the URL.",
        )
    most, threads = pool.max_connections, worker_threads()
    allowed = "any number of" if most >= UNLIMITED else f"up to {most}"
    told = f"{allowed} connections for a process (max_connections)"
    if most <= (threads or 1):
        callers = (
            f"{threads} tasks run in one (worker_concurrency)"
            if threads
            else "leases are renewed beside its calls"
        )
        yield Finding(
            WARN,
            "pool",
            f"{told}, where {callers}: who finds none gets LockUnavailable, or waits for one",
            f"Make max_connections at least {(threads or 1) + 1}: in CONNECTION_POOL_KWARGS of the "
            "alias in CACHES, or in the query of the URL.",
        )
    elif threads:
        yield Finding(OK, "pool", f"{told}, of which {threads} tasks run in one")
    else:
        yield Finding(OK, "pool", told)
