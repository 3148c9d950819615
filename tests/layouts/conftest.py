"""The layouts, one of each for a run, and what every test on them begins with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from tests.layouts.servers import Cluster, Layout, Sentinel
from tests.tools import leave_no_lease


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    """Three masters with a replica each."""
    with Cluster(node_timeout=15) as cluster:  # nobody is to be taken for dead here
        yield cluster


@pytest.fixture(scope="session")
def session_sentinel() -> Iterator[Sentinel]:
    """A master with two replicas, and three sentinels."""
    with Sentinel(down_after=15) as sentinel:  # nobody is to be taken for dead here
        yield sentinel


def settled(layout: Layout, **entry: Any) -> Iterator[Layout]:
    """Yield a layout, emptied and as ``default`` in LOCKS."""
    layout.flush()
    with override_settings(**layout.locks(**entry)):
        yield layout
    leave_no_lease()


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Layout]:
    yield from settled(session_cluster)


@pytest.fixture
def sentinel(session_sentinel: Sentinel) -> Iterator[Layout]:
    yield from settled(session_sentinel)


@pytest.fixture
def replicating_cluster(session_cluster: Cluster) -> Iterator[Layout]:
    """The same, where each lock counts once the replica of its node knows of it."""
    yield from settled(session_cluster, OPTIONS={"REPLICAS": 1, "REPLICA_TIMEOUT": 4})


@pytest.fixture
def replicating_sentinel(session_sentinel: Sentinel) -> Iterator[Layout]:
    """The same, where each lock counts once both replicas know of it."""
    yield from settled(session_sentinel, OPTIONS={"REPLICAS": 2, "REPLICA_TIMEOUT": 4})
