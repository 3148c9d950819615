"""What the benchmark asks of the server: counts of commands, connections and bytes of memory."""

import time
from collections.abc import Callable

from redis import Redis

from .contenders import ADMIN

OWN = "info"
"""The only command of the benchmark itself that runs while commands are being counted."""


def commands(admin: Redis) -> dict[str, int]:
    """Return how often each command has run, inside scripts too."""
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


def connections(admin: Redis) -> int:
    """Return the number of connections, without the benchmark's own."""
    return sum(client["name"] != ADMIN for client in admin.client_list())


def settled_memory(admin: Redis) -> int:
    """Return the memory in use once the server has finished growing its tables."""
    used = -1
    while (now := int(admin.info("memory")["used_memory"])) != used:
        used = now
        time.sleep(0.05)
    return used


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Look again and again until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.0005)
