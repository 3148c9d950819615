"""What the package uses of redis-py beyond its documented API is as it was. Each test tells what
changed in a release of redis-py, before anything else fails because of it."""

from __future__ import annotations

import ast
import socket
from typing import Any

import pytest
import redis

from django_redis_lock.transport import redis_py
from example_project.embedded import EmbeddedServer
from tests.tools import ROOT, syntax_tree

PRIVATE_NAMES = {"parse_url"}
PRIVATE_ATTRIBUTES = {*("_sock", "_parser"), *PRIVATE_NAMES}


@pytest.fixture
def connection(server: EmbeddedServer) -> Any:
    opened = redis.Connection(port=server.port, protocol=2)
    opened.connect()
    yield opened
    opened.disconnect()


def test_all_of_it_stands_in_one_module() -> None:
    for path in (ROOT / "django_redis_lock").rglob("*.py"):
        if path.name == "redis_py.py":
            continue
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redis."):
                private = PRIVATE_NAMES & {name.name for name in node.names}
                assert not private, f"{path} imports {private}"
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES:
                pytest.fail(f"{path} names {node.attr}")


def test_errors_of_a_cluster_have_their_classes(connection: Any) -> None:
    """In connections of any client, which redis-py 5.2 does not see to; others stay as they are."""
    moved = redis_py.parse_error(connection, "MOVED 3999 10.0.0.7:6381")
    assert isinstance(moved, redis.exceptions.MovedError)
    assert (moved.slot_id, moved.host, moved.port) == (3999, "10.0.0.7", 6381)
    down = redis_py.parse_error(connection, "MASTERDOWN Link with MASTER is down")
    assert isinstance(down, redis.exceptions.MasterDownError)
    assert type(redis_py.parse_error(connection, "ERR MASTERDOWN")) is redis.ResponseError


def test_the_socket_of_a_connection(connection: Any) -> None:
    """``_sock``: the socket itself, and ``None`` once it is closed."""
    ours = redis_py.socket_of(connection)
    assert isinstance(ours, socket.socket)
    ours.sendall(b"*1\r\n$4\r\nPING\r\n")
    assert connection.read_response() == b"PONG"
    connection.disconnect()
    assert redis_py.socket_of(connection) is None
    assert redis_py.socket_of(object()) is None


def test_replies_are_read_raw(connection: Any) -> None:
    """``read_response(disable_decoding=True)``."""
    connection.send_command("PING")
    assert connection.read_response(disable_decoding=True) == b"PONG"
