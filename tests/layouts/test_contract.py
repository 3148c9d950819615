"""The contract on every layout and backend that needs servers of its own, or other options.

Debian's Redis: apt-get install -y redis-server
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_redis_lock import locks
from example_project.embedded import EmbeddedServer
from tests.contracts.capabilities import LACKS
from tests.contracts.locks import LayoutContract, LockContract
from tests.contracts.sharing import SharingContract, UnsharedContract
from tests.layouts.servers import BACKEND, Cluster
from tests.settings import server_url
from tests.tools.quorums import Quorum, in_use, started

nightly = pytest.mark.nightly  # all but a cluster and a quorum


@pytest.mark.usefixtures("cluster")
class TestCluster(LayoutContract, SharingContract):
    using = "default"


@nightly
@pytest.mark.usefixtures("replicating_cluster")
class TestReplicatingCluster(LayoutContract, SharingContract):
    """The same, where each lock waits for a replica."""

    using = "default"


@nightly
@pytest.mark.usefixtures("replicating_sentinel")
class TestReplicatingSentinel(LayoutContract, SharingContract):
    """A master found by asking sentinels, where each lock waits for both replicas."""

    using = "default"


@pytest.fixture(scope="module")
def session_quorum() -> Iterator[Quorum]:
    with started(3) as quorum:
        yield quorum


@pytest.fixture
def quorum(session_quorum: Quorum) -> Iterator[None]:
    with in_use(session_quorum):
        yield


@pytest.mark.usefixtures("quorum")
class TestQuorum(LockContract, UnsharedContract):
    """A majority of several servers, for which waiters have no order."""

    using = "redlock"
    lacks = LACKS["RedlockLockBackend"]


@pytest.fixture
def on_one_server(server: EmbeddedServer) -> Iterator[None]:
    """The waiting schemes of one server, as aliases of LOCKS."""

    entry = {"BACKEND": BACKEND, "LOCATION": server_url(2)}
    aliases = {
        "default": entry,
        "blpop": {**entry, "OPTIONS": {"WAIT": "blpop"}},
        "poll": {**entry, "OPTIONS": {"WAIT": "poll", "POLL_INTERVAL": 0.05}},
    }
    with override_settings(LOCKS=aliases):
        yield


@nightly
@pytest.mark.usefixtures("on_one_server")
class TestBlpop(LayoutContract, SharingContract):
    using = "blpop"


@nightly
@pytest.mark.usefixtures("on_one_server")
class TestPoll(LayoutContract, SharingContract):
    using = "poll"


def redis_server() -> str:
    path = os.environ.get("LOCKS_TEST_SERVER") or shutil.which("redis-server")
    assert path, "these tests need Redis: apt-get install -y redis-server"
    return path


@pytest.fixture(scope="class")
def on_redis_cluster() -> Iterator[None]:
    with Cluster(3, 0, node_timeout=15, binary=redis_server()) as cluster:
        with override_settings(**cluster.locks()):
            yield
        locks.reset()


@nightly
@pytest.mark.usefixtures("on_redis_cluster")
class TestRedisCluster(LayoutContract, SharingContract):
    """Three masters of it; noxfile.py has the rows with a single server."""

    using = "default"
