"""Runs the examinations of a server, until it becomes unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor.access import examine_access
from django_redis_lock.management.console.doctor.clients import examine_buffers, examine_clients
from django_redis_lock.management.console.doctor.findings import (
    FAIL,
    OK,
    WARN,
    Examination,
    Finding,
)
from django_redis_lock.management.console.doctor.layout import (
    examine_cluster,
    examine_replicas,
    misplaced,
)
from django_redis_lock.management.console.doctor.permissions import examine_permissions
from django_redis_lock.management.console.doctor.server import (
    examine_fence,
    examine_round_trip,
    examine_version,
)
from django_redis_lock.management.console.doctor.services import (
    examine_channels,
    examine_scripts,
    is_unknown,
)
from django_redis_lock.management.console.doctor.storage import (
    examine_eviction,
    examine_persistence,
)
from django_redis_lock.management.console.doctor.targets import Target
from django_redis_lock.support.text import without_passwords

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_EXAMINATIONS: dict[str, Examination] = {
    "version": examine_version,
    "round trip": examine_round_trip,
    "fence": examine_fence,
    "eviction": examine_eviction,
    "persistence": examine_persistence,
    "replicas": examine_replicas,
    "cluster": examine_cluster,
    "clients": examine_clients,
    "buffers": examine_buffers,
    "access": examine_access,
    "scripts": examine_scripts,
    "channels": examine_channels,
    "permissions": examine_permissions,
}
START_IT = "Start it, or mend LOCATION, its password or the network between."
START_SENTINELS = "Start the sentinels, or mend SENTINELS, or the name of the master in the URL."


def examine_servers(targets: list[Target]) -> list[list[Finding]]:
    """Examine servers in parallel; return the findings of each."""
    return in_parallel(
        lambda target: [
            finding._replace(server=target.address) for finding in examine_server(target)
        ],
        targets,
    )


def of_use(targets: list[Target], reports: list[list[Finding]]) -> list[Target]:
    """Return the servers that answered to the end and can be used by the backend."""
    return [
        target
        for target, report in zip(targets, reports, strict=True)
        if report[-1].check not in ("server", "cluster")
    ]


def in_parallel(ask: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
    """Return the result for each item, so that several timeouts take as long as one."""
    items = list(items)
    with ThreadPoolExecutor(max(1, len(items))) as threads:
        return list(threads.map(ask, items))


def examine_server(target: Target) -> Iterator[Finding]:
    """Yield the findings; only one if the server is unavailable."""
    where = target.address
    down = WARN if target.member else FAIL  # the quorum has a finding of its own
    try:
        with target.client() as client:
            _call(client, target)
            yield Finding(OK, "server", f"{where} answers")
            wrong = misplaced(client, target)
            if wrong is not None:
                yield wrong
                return
            yield from _examine(client, target)
    except (NoConnection, TimedOut, OSError, NoPermissionError) as error:
        if target.located:
            yield Finding(down, "server", f"{where} does not answer: {reason(error)}", START_IT)
        else:
            told = f"no sentinel knows {where}: {reason(error)}"
            yield Finding(down, "server", told, START_SENTINELS)
    except RedisError as error:
        yield Finding(FAIL, "server", f"{where}: {reason(error)}", START_IT)


def _call(client: Any, target: Target) -> None:
    if target.local_clock:  # TIME may be forbidden there
        client.get(target.packing.fence_key)
    else:
        client.time()


def _examine(client: Any, target: Target) -> Iterator[Finding]:
    hidden: dict[str, str] = {}
    for check, examine in _EXAMINATIONS.items():
        try:
            yield from examine(client, target)
        except (NoConnection, TimedOut):
            raise
        except ResponseError as error:
            text = without_passwords(str(error))
            if isinstance(error, NoPermissionError) or is_unknown(error):
                hidden[check] = text
            else:
                yield Finding(FAIL, check, f"not known: {text}", "See whether the server is up.")
    if hidden:
        yield Finding(
            WARN,
            "not known",
            f"{', '.join(hidden)}: {next(iter(hidden.values()))}",
            "Ask the server's administrator, or let a user who may run INFO and CONFIG look.",
        )
