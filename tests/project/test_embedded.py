"""The embedded server that the demo, the tests and the benchmark run on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import redis

from example_project.embedded import EmbeddedServer
from tests.tools import alive, check_it_dies_with_its_parent


def test_start_restart_and_stop() -> None:
    """It answers once started, comes back on the same port, and is gone after the stop."""
    with EmbeddedServer(persist=True) as server:
        pid, port, directory = server.pid, server.port, server.directory
        with redis.Redis.from_url(server.url()) as client:
            client.set("a", "b")
        server.kill()
        assert not alive(pid)
        server.restart()
        assert server.port == port
        with redis.Redis.from_url(server.url()) as client:
            assert client.get("a") == b"b"
        pid = server.pid
    assert not alive(pid)
    assert not directory.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_parent(how: signal.Signals) -> None:
    """However the process ends that started it, the server and its directory go too."""
    create = "from example_project.embedded import EmbeddedServer; server = EmbeddedServer()"
    check_it_dies_with_its_parent(create, how)
