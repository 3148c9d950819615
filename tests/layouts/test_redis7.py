"""The contract on Debian's Redis 7.0, alone and as a cluster.

apt-get install -y redis-server
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.contracts.locks import LayoutContract
from tests.layouts.servers import BACKEND, Cluster


def binary() -> str:
    path = os.environ.get("LOCKS_TEST_SERVER") or shutil.which("redis-server")
    assert path, "these tests need Redis: apt-get install -y redis-server"
    return path


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(binary=binary()) as server:
        yield server


@pytest.fixture
def on_redis(redis_server: EmbeddedServer) -> Iterator[None]:
    with override_settings(LOCKS={"default": {"BACKEND": BACKEND, "LOCATION": redis_server.url()}}):
        yield
    locks.reset()


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[Cluster]:
    with Cluster(3, 0, node_timeout=15, binary=binary()) as cluster:
        yield cluster


@pytest.fixture
def on_redis_cluster(redis_cluster: Cluster) -> Iterator[None]:
    redis_cluster.flush()
    with override_settings(**redis_cluster.locks()):
        yield
    locks.reset()


@pytest.mark.usefixtures("on_redis")
class TestRedis(LayoutContract):
    """One Redis server."""

    using = "default"


@pytest.mark.usefixtures("on_redis_cluster")
class TestRedisCluster(LayoutContract):
    """Three masters."""

    using = "default"
