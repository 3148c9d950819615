"""The contract on a cluster, and on servers that sentinels watch."""

from __future__ import annotations

import pytest

from tests.contracts.locks import LayoutContract


@pytest.mark.usefixtures("cluster")
class TestCluster(LayoutContract):
    """Three masters with a replica each."""

    using = "default"


@pytest.mark.usefixtures("replicating_cluster")
class TestReplicatingCluster(LayoutContract):
    """The same, where each lock waits for a replica."""

    using = "default"


@pytest.mark.usefixtures("replicating_sentinel")
class TestReplicatingSentinel(LayoutContract):
    """A master found by asking sentinels, where each lock waits for both replicas."""

    using = "default"
