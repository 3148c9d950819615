"""The examinations of one entry of ``LOCKS``, by kind of backend."""

from __future__ import annotations

from collections.abc import Iterator

from redis.exceptions import RedisError

from django_redis_lock.backends.base import BaseLockBackend
from django_redis_lock.backends.dummy import DummyLockBackend
from django_redis_lock.backends.getset.backend import GetSetLockBackend
from django_redis_lock.backends.locmem import LocMemLockBackend
from django_redis_lock.backends.redis.backend import RedisLockBackend
from django_redis_lock.backends.redlock.backend import RedlockLockBackend
from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.exceptions import InvalidLockBackend, LockError
from django_redis_lock.handler import locks
from django_redis_lock.management.console.doctor.entry import examine_pool, examine_settings
from django_redis_lock.management.console.doctor.examination import (
    START_IT,
    examine_servers,
    in_parallel,
    of_use,
)
from django_redis_lock.management.console.doctor.findings import FAIL, OK, WARN, Finding
from django_redis_lock.management.console.doctor.layout import is_in_cluster
from django_redis_lock.management.console.doctor.leases import examine_leases
from django_redis_lock.management.console.doctor.quorum import examine_quorum
from django_redis_lock.management.console.doctor.sharing import Neighbours
from django_redis_lock.management.console.doctor.targets import (
    PATIENCE,
    Target,
    client_of,
    model_of,
    pool_of,
)
from django_redis_lock.support.text import without_passwords
from django_redis_lock.transport.connections import pool_from_url

PRODUCTION = 'Write "BACKEND": "django_redis_lock.backends.redis.RedisLockBackend" for production.'


def examine_aliases(aliases: list[str]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings of each alias, and those of Celery's tasks under ``""``."""
    neighbours = Neighbours()
    for alias in aliases:
        try:
            for finding in _examine_alias(locks[alias], neighbours):
                yield alias, finding
        except InvalidLockBackend as error:
            yield alias, Finding(FAIL, "settings", without_passwords(str(error)), "Mend LOCKS.")
    for finding in examine_leases():
        yield "", finding


def _examine_alias(backend: BaseLockBackend, neighbours: Neighbours) -> Iterator[Finding]:
    serious = False
    for finding in examine_settings(backend):
        serious = serious or finding.status == FAIL
        yield finding
    if serious:
        return  # the rest would fail for the same reason
    if isinstance(backend, RedlockLockBackend):
        answering = yield from examine_quorum(backend)
        yield from neighbours.examine(backend, answering)
    elif isinstance(backend, RedisLockBackend) and backend.location.urls:
        yield from _examine_cluster(backend, neighbours)
    elif isinstance(backend, RedisLockBackend | GetSetLockBackend):
        yield from _examine_server(backend, neighbours)
    elif isinstance(backend, LocMemLockBackend):
        yield Finding(WARN, "server", "none: other processes have locks of their own", PRODUCTION)
    elif isinstance(backend, DummyLockBackend):
        yield Finding(WARN, "server", "none: this backend excludes nobody", PRODUCTION)
    else:
        yield _examine_other(backend)


def _examine_server(
    backend: RedisLockBackend | GetSetLockBackend, neighbours: Neighbours
) -> Iterator[Finding]:
    pool = pool_of(backend)
    yield from examine_pool(pool)
    targets = [Target(backend, pool)]
    yield from _examine_servers(backend, targets, neighbours)


def _examine_cluster(backend: RedisLockBackend, neighbours: Neighbours) -> Iterator[Finding]:
    """Examine each node in ``LOCATION``, and each master."""
    urls = backend.location.urls or []
    yield from examine_pool(pool_from_url(urls[0]))
    nodes = in_parallel(_ask_node, urls)
    silent = [finding for finding in nodes if finding and finding.status == WARN]
    if len(silent) == len(urls):
        yield _of_no_node(f"none of {len(urls)} nodes does; {silent[0].found}")
        return
    for finding in nodes:
        if finding is not None:
            yield finding
    if any(finding is not None and finding.status == FAIL for finding in nodes):
        return
    try:
        pools = backend.servers.pools()
    except (RedisError, OSError) as error:
        yield _of_no_node(reason(error))
        return
    targets = [Target(backend, pool) for pool in pools]
    yield from _examine_servers(backend, targets, neighbours)


def _of_no_node(why: str) -> Finding:
    return Finding(
        FAIL,
        "server",
        f"the cluster does not answer: {why}",
        "Start its nodes, or mend LOCATION, its password or the network between.",
    )


def _examine_servers(
    backend: BaseLockBackend, targets: list[Target], neighbours: Neighbours
) -> Iterator[Finding]:
    reports = examine_servers(targets)
    for report in reports:
        yield from report
    yield from neighbours.examine(backend, of_use(targets, reports))


def _ask_node(url: str) -> Finding | None:
    """Return a finding if a node in ``LOCATION`` is unavailable or not in a cluster."""
    pool = pool_from_url(url)
    try:
        with client_of(model_of(pool, PATIENCE)) as client:
            if is_in_cluster(client) is not False:
                return None
    except (RedisError, OSError) as error:
        return Finding(
            WARN,
            "server",
            f"{without_passwords(url)} does not answer: {reason(error)}",
            f"{START_IT} One node that answers is enough to find the others.",
        )
    return Finding(
        FAIL,
        "cluster",
        f"{without_passwords(url)} is no node of a cluster, and a list in LOCATION names nodes",
        "Write its URL alone, as a str, into LOCATION; or start it with cluster-enabled yes.",
    )


def _examine_other(backend: BaseLockBackend) -> Finding:
    """Examine a third-party backend: does it answer?"""
    kind = type(backend).__name__
    try:
        backend.holder("django-redis-lock")
    except (LockError, InvalidLockBackend) as error:
        return Finding(FAIL, "server", without_passwords(str(error)), "Mend LOCKS, or the server.")
    return Finding(OK, "server", f"answers; of {kind} there is no more to examine")
