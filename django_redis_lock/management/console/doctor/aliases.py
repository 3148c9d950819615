"""The examinations of one entry of ``LOCKS``, by kind of backend."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.servers.base import ServersLockBackend
from django_redis_lock.backends.servers.cluster import Cluster
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.management.console.doctor.examination import START_IT, examine_servers
from django_redis_lock.management.console.doctor.quorum import compare_members, members_of
from django_redis_lock.management.console.doctor.server import is_in_cluster
from django_redis_lock.management.console.doctor.settings import (
    examine_leases,
    examine_pool,
    examine_settings,
)
from django_redis_lock.management.console.doctor.sharing import Neighbours
from django_redis_lock.management.console.doctor.targets import (
    PATIENCE,
    Finding,
    Target,
    client_of,
    fail,
    in_parallel,
    model_of,
    ok,
    pool_of,
    warn,
)
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import pool_from_url

PRODUCTION = 'In production, set "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend".'


def examine_aliases(aliases: list[str]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings of each alias, and those of Celery's tasks under ``""``."""
    neighbours = Neighbours()
    for alias in aliases:
        try:
            for finding in _examine_alias(locks[alias], neighbours):
                yield alias, finding
        except InvalidLockBackend as error:
            yield alias, fail("settings", without_passwords(str(error)), "Fix LOCKS.")
    for finding in examine_leases():
        yield "", finding


def _examine_alias(backend: BaseLockBackend, neighbours: Neighbours) -> Iterator[Finding]:
    settings = list(examine_settings(backend))
    yield from settings
    if any(finding.status == "fail" for finding in settings):
        return  # the rest would fail for the same reason
    if isinstance(backend, RedlockLockBackend):
        findings, usable = examine_servers(members_of(backend))
        yield from findings
        yield from compare_members(backend, usable)
        yield from neighbours.examine(backend, usable)
    elif isinstance(backend, ServersLockBackend):
        if isinstance(backend.servers, Cluster):
            targets = yield from _find_masters(backend, backend.servers)
        else:
            pool = pool_of(backend)
            yield from examine_pool(pool)
            targets = [Target(backend, pool)]
        if targets:
            findings, usable = examine_servers(targets)
            yield from findings
            yield from neighbours.examine(backend, usable)
    elif isinstance(backend, LocMemLockBackend):
        yield warn("server", "none: each process has its own locks", PRODUCTION)
    elif isinstance(backend, DummyLockBackend):
        yield warn("server", "none: every acquire succeeds", PRODUCTION)
    else:
        yield _examine_other(backend)


def _find_masters(
    backend: ServersLockBackend, cluster: Cluster
) -> Generator[Finding, None, list[Target]]:
    """Examine each node in ``LOCATION``; return the masters."""
    urls = cluster.location.urls or []
    yield from examine_pool(pool_from_url(urls[0]))
    wrong = [finding for finding in in_parallel(_examine_node, urls) if finding]
    silent = [finding for finding in wrong if finding.status == "warn"]
    if len(silent) == len(urls):
        yield _no_node(f"none of {len(urls)} nodes does; {silent[0].found}")
        return []
    yield from wrong
    if len(wrong) > len(silent):
        return []
    try:
        return [Target(backend, pool) for pool in cluster.pools()]
    except (RedisError, OSError) as error:
        yield _no_node(reason(error))
        return []


def _no_node(why: str) -> Finding:
    remedy = "Start its nodes, or fix LOCATION, its password or the network."
    return fail("server", f"the cluster does not answer: {why}", remedy)


def _examine_node(url: str) -> Finding | None:
    """Return a finding if a node in ``LOCATION`` is unavailable or not in a cluster."""
    try:
        with client_of(model_of(pool_from_url(url), PATIENCE)) as client:
            if is_in_cluster(client) is not False:
                return None
    except (RedisError, OSError) as error:
        return warn(
            "server",
            f"{without_passwords(url)} does not answer: {reason(error)}",
            f"{START_IT} One node that answers is enough to find the others.",
        )
    return fail(
        "cluster",
        f"{without_passwords(url)} is not a cluster node, but a list in LOCATION names nodes",
        "Set LOCATION to its URL alone, as a str, or start it with cluster-enabled yes.",
    )


def _examine_other(backend: BaseLockBackend) -> Finding:
    """Examine a third-party backend: does it answer?"""
    try:
        backend.holder("django-redis-lock")
    except (LockError, InvalidLockBackend) as error:
        return fail("server", without_passwords(str(error)), "Fix LOCKS, or start the server.")
    return ok("server", f"answers; {type(backend).__name__} has no further examinations")
