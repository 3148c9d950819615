"""The proxy fails in the ways in which networks do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from example_project.embedded import EmbeddedServer
from tests.chaos.sites import client as connect
from tests.tools import eventually
from tests.tools.proxy import Proxy


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    with connect(proxy.port) as through:
        through.ping()
        yield through


def test_black_hole_delivers_late(proxy: Proxy, through: redis.Redis, client: redis.Redis) -> None:
    proxy.hold_back()
    with pytest.raises(redis.TimeoutError):
        through.set("late", "1")
    assert client.get("late") is None
    proxy.let_go()
    eventually(lambda: client.get("late") == "1")


def test_half_open_connections_are_dead_and_new_ones_work(
    proxy: Proxy, through: redis.Redis
) -> None:
    proxy.silence()
    assert proxy.silent() == 1
    with pytest.raises(redis.TimeoutError):
        through.ping()
    assert through.ping()
    eventually(lambda: proxy.silent() == 0)


def test_cut(proxy: Proxy) -> None:
    one = redis.Connection(port=proxy.port)
    one.send_command("PING")
    one.read_response()
    assert proxy.cut() == 1
    with pytest.raises(redis.ConnectionError):
        one.read_response()
    one.send_command("PING")
    assert one.read_response() == b"PONG"
    one.disconnect()


def test_a_server_that_is_down_does_not_end_the_proxy() -> None:
    with EmbeddedServer() as own, Proxy(own.port) as proxy:
        own.kill()
        with connect(proxy.port) as through:
            with pytest.raises(redis.ConnectionError):
                through.ping()
            own.restart()
            assert through.ping()
