"""Every server of a layout falls silent: a caller that gave a limit to its wait is told in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_redis_lock import lock, lock_many
from example_project.embedded import EmbeddedServer
from tests.layouts.servers import Layout
from tests.tools import Background, eventually, waiters
from tests.tools.quorums import in_use, started
from tests.transport.test_silence import awaiting, blocking, check, seconds_until_unavailable


@contextmanager
def silent(servers: list[EmbeddedServer]) -> Iterator[None]:
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


def check_silence(name: str, servers: list[EmbeddedServer], using: str = "default") -> None:
    """Check callers that are connected, and that wait when it begins; then the locks are free."""
    held = lock(f"{name}-held", timeout=30, using=using)
    held.acquire()
    taken = [
        lock(f"{name}-{number}", timeout=20, using=using, blocking=False) for number in range(3)
    ]
    queue = lock(held.name, timeout=20, using=using, blocking_timeout=4)
    several = lock_many([f"{name}-4", f"{name}-5"], timeout=20, using=using, blocking=False)
    waiting = Background(lambda: seconds_until_unavailable(blocking, queue))
    eventually(lambda: waiters(held.name, using) == 1)
    with silent(servers):
        callers = {
            "blocking": Background(lambda: seconds_until_unavailable(blocking, taken[0])),
            "awaiting": Background(lambda: seconds_until_unavailable(awaiting, taken[1])),
            "several": Background(lambda: seconds_until_unavailable(blocking, several)),
        }
        check(callers, 1.0)
        again = {"again": Background(lambda: seconds_until_unavailable(blocking, taken[2]))}
        check(again, 1.0)
        check({"waiting": waiting}, 4.0)
    held.release()
    for each in (*taken, held):
        with lock(each.name, timeout=20, using=using, blocking_timeout=15):
            pass


def test_silent_cluster(cluster: Layout, name: str) -> None:
    check_silence(name, cluster.servers)


@pytest.mark.parametrize("what", ["servers", "sentinels"])
def test_silent_sentinel(sentinel: Layout, name: str, what: str) -> None:
    servers = sentinel.servers if what == "servers" else [*sentinel.servers, *sentinel.sentinels]
    check_silence(name, servers)


def test_silent_quorum(name: str) -> None:
    """Even where the quorum would wait for longer."""
    with started(3) as quorum, in_use(quorum, SERVER_TIMEOUT=5):
        check_silence(name, quorum.servers, "redlock")
