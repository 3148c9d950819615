"""The examinations of a server's limits for clients: connections and output buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django_redis_lock.management.console.doctor.findings import OK, WARN, Finding
from django_redis_lock.management.console.doctor.targets import Target

NEAR = 0.8
"""The share of ``maxclients`` that is worth a warning."""
FEW = 100
"""Few clients: a process that waits for locks has at least two connections."""
SMALL = 1_000_000
"""A small output buffer in bytes: some thousand grants at once."""
NORMAL = "'pubsub 33554432 8388608 60'"


def examine_clients(client: Any, target: Target) -> Iterator[Finding]:
    """Is there room for more connections?"""
    info = client.info("clients")
    connected, most = int(info["connected_clients"]), int(info.get("maxclients", 0))
    most = most or int(client.config_get("maxclients").get("maxclients", 0))
    rejected = int(client.info("stats").get("rejected_connections", 0))
    found = f"{connected} of {most} connections (maxclients)"
    more = f"CONFIG SET maxclients {max(10_000, 2 * most)}, and a ulimit -n that allows it"
    if connected >= NEAR * most:
        yield Finding(
            WARN,
            "clients",
            f"{found}: soon nobody else can connect",
            f"{more}; see CLIENT LIST for who has them.",
        )
    elif rejected:
        yield Finding(
            WARN,
            "clients",
            f"{found}, and {rejected} were refused since the server started",
            f"{more}; CONFIG RESETSTAT begins to count anew.",
        )
    elif most < FEW:
        yield Finding(
            WARN,
            "clients",
            f"{found}: few, for each process has one for its calls and one to wait",
            f"{more}.",
        )
    else:
        yield Finding(OK, "clients", found)


def examine_buffers(client: Any, target: Target) -> Iterator[Finding]:
    """How much may be buffered for a process that waits for grants?"""
    if target.wait != "queue":
        return
    option = "client-output-buffer-limit"
    words = str(client.config_get(option).get(option, "")).split()
    if "pubsub" not in words:
        return
    hard, soft, seconds = map(int, words[words.index("pubsub") + 1 :][:3])
    found = f"up to {hard:,} bytes may be on their way to a process that waits"
    if not hard and not soft:
        yield Finding(
            WARN,
            "buffers",
            "no limit (client-output-buffer-limit pubsub): a subscriber that hangs can fill the "
            "server's memory",
            f"CONFIG SET {option} {NORMAL}.",
        )
    elif 0 < (hard or soft) < SMALL or 0 < soft < SMALL:
        least = min(limit for limit in (hard, soft) if limit)
        yield Finding(
            WARN,
            "buffers",
            f"only {least:,} bytes (client-output-buffer-limit pubsub): a process with many "
            "waiters is cut off when many locks come free at once",
            f"CONFIG SET {option} {NORMAL}.",
        )
    else:
        if soft:
            found += f", {soft:,} for {seconds} s"
        yield Finding(OK, "buffers", found if hard else f"{soft:,} bytes for {seconds} s")
