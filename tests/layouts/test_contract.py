"""The contract on a cluster, and on servers that sentinels watch."""

from __future__ import annotations

import pytest

from tests.contracts.locks import LockContract


@pytest.mark.usefixtures("cluster")
class TestCluster(LockContract):
    """Three masters with a replica each."""

    using = "default"


@pytest.mark.usefixtures("sentinel")
class TestSentinel(LockContract):
    """A master with two replicas, found by asking sentinels."""

    using = "default"


@pytest.mark.usefixtures("replicating_cluster")
class TestReplicatingCluster(LockContract):
    """The same with REPLICAS."""

    using = "default"


@pytest.mark.usefixtures("replicating_sentinel")
class TestReplicatingSentinel(LockContract):
    """The same with REPLICAS."""

    using = "default"
