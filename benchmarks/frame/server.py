"""What the benchmarks ask of the Redis server, and waiting for a condition."""

import time
from collections.abc import Callable

from redis import Redis

ADMIN = "bench-admin"
"""The name of the benchmark's own connections, which are not counted."""
OWN = "info"
"""The only command that the benchmark itself sends while commands are counted."""


def commands(admin: Redis) -> dict[str, int]:
    """Return how often each command has run, including inside scripts."""
    return {
        name.removeprefix("cmdstat_"): figures["calls"]
        for name, figures in admin.info("commandstats").items()
    }


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return by how much each count has grown, without the benchmark's own command."""
    return {
        name: calls - before.get(name, 0)
        for name, calls in after.items()
        if calls > before.get(name, 0) and name != OWN
    }


def connections(admin: Redis) -> tuple[int, int]:
    """Return the number of connections, and of those that are subscribed to a channel."""
    clients = [client for client in admin.client_list() if client["name"] != ADMIN]
    return len(clients), sum(int(client["sub"]) > 0 for client in clients)


def settled_memory(admin: Redis) -> int:
    """Return the memory in use, in bytes, once the server has finished resizing its tables."""
    used = -1
    while (now := int(admin.info("memory")["used_memory"])) != used:
        used = now
        time.sleep(0.05)
    return used


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.0005)
