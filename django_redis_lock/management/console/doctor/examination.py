"""Runs the examinations of a server, until it becomes unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_redis_lock.backends.servers.errors import reason
from django_redis_lock.management.console.doctor import access, resources, server, services
from django_redis_lock.management.console.doctor.permissions import examine_permissions
from django_redis_lock.management.console.doctor.targets import (
    Finding,
    Target,
    fail,
    in_parallel,
    ok,
    warn,
)
from django_redis_lock.support.text import without_passwords

_EXAMINATIONS: dict[str, Callable[[Any, Target], Iterator[Finding]]] = {
    "version": server.examine_version,
    "round trip": server.examine_round_trip,
    "fence": server.examine_fence,
    "eviction": resources.examine_eviction,
    "persistence": resources.examine_persistence,
    "replicas": server.examine_replicas,
    "cluster": server.examine_cluster,
    "clients": resources.examine_clients,
    "buffers": resources.examine_buffers,
    "access": access.examine_access,
    "scripts": services.examine_scripts,
    "channels": services.examine_channels,
    "permissions": examine_permissions,
}
"""Each takes a redis-py client of the server."""
START_IT = "Start the server, or fix LOCATION, its password or the network."
START_SENTINELS = "Start the sentinels, or fix SENTINELS or the name of the master in the URL."


def examine_servers(targets: list[Target]) -> tuple[list[Finding], list[Target]]:
    """Examine servers in parallel; return the findings, and the servers that the backend can use.

    These answered to the end, and are of the kind that the backend expects.
    """
    reports = in_parallel(_examine_server, targets)
    usable = [
        target
        for target, report in zip(targets, reports, strict=True)
        if report[-1].check not in ("server", "cluster")
    ]
    return [finding for report in reports for finding in report], usable


def _examine_server(target: Target) -> list[Finding]:
    """Return the findings; only one if the server is unavailable."""
    return [finding._replace(server=target.address) for finding in _findings(target)]


def _findings(target: Target) -> Iterator[Finding]:
    where = target.address
    unavailable = warn if target.member else fail  # the quorum has a finding of its own
    try:
        with target.client() as client:
            client.time()
            yield ok("server", f"{where} answers")
            if finding := server.misplaced(client, target):
                yield finding
                return
            yield from _examine(client, target)
    except (NoConnection, TimedOut, OSError, NoPermissionError) as error:
        if target.located:
            yield unavailable("server", f"{where} does not answer: {reason(error)}", START_IT)
        else:
            found = f"no sentinel knows {where}: {reason(error)}"
            yield unavailable("server", found, START_SENTINELS)
    except RedisError as error:
        yield fail("server", f"{where}: {reason(error)}", START_IT)


def _examine(client: Any, target: Target) -> Iterator[Finding]:
    hidden: dict[str, str] = {}
    for check, examine in _EXAMINATIONS.items():
        try:
            yield from examine(client, target)
        except (NoConnection, TimedOut):
            raise
        except ResponseError as error:
            text = without_passwords(str(error))
            if isinstance(error, NoPermissionError) or services.is_unknown(error):
                hidden[check] = text
            else:
                yield fail(check, f"not known: {text}", "Check the server's state and log.")
    if hidden:
        yield warn(
            "not known",
            f"{', '.join(hidden)}: {next(iter(hidden.values()))}",
            "Ask the server's administrator, or use a user that may run INFO and CONFIG.",
        )
