"""Many callers ask a cluster whose nodes do not answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from redis.exceptions import RedisError

from django_redis_lock.backends.servers.topology import Topology
from tests.tools import Background

CALLERS = 10


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A node that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        listener.setblocking(False)
        yield listener


def questions(deaf: socket.socket) -> int:
    with contextlib.ExitStack() as stack:
        for count in range(100):
            try:
                stack.enter_context(deaf.accept()[0])
            except BlockingIOError:
                return count
    raise AssertionError


def topology_at(deaf: socket.socket) -> Topology:
    return Topology([f"redis://127.0.0.1:{deaf.getsockname()[1]}?socket_timeout=0.5"])


def test_threads_share_one_failure_to_read(deaf: socket.socket) -> None:
    """Callers during a failing read share its outcome, rather than fail one after another."""
    alone = topology_at(deaf)
    with pytest.raises(RedisError):
        alone.address(0)
    each = questions(deaf)
    shared = topology_at(deaf)
    asking = [Background(lambda: shared.address(0)) for _ in range(CALLERS)]
    for one in asking:
        with pytest.raises(RedisError):
            one.outcome()
    assert questions(deaf) == each
    shared.close()
    alone.close()
