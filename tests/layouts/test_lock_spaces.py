"""The lock space of a project's tests on a cluster and behind Sentinel."""

from __future__ import annotations

from django_redis_lock import lock, locks
from django_redis_lock.testing import LockSpace, lose
from tests.layouts.servers import Cluster, Sentinel, client


def leave_locks() -> str:
    """Leave locks in a space, which empties itself; return its prefix."""
    with LockSpace("server") as space:
        with space.one_test():
            for number in range(50):
                lock(f"left:{number}").acquire()
            lose("left:1")
        assert list(locks["default"].holders()) == []
        lock("left").acquire()
        return locks["default"].key_prefix


def test_a_space_leaves_nothing_on_any_node(cluster: Cluster) -> None:
    with lock("other"):
        prefix = leave_locks()
        keys = []
        for master in cluster.masters():
            with client(master) as one:
                keys += one.keys("*")
        assert [key for key in keys if prefix in str(key)] == []
        assert any("other" in str(key) for key in keys)


def test_a_space_leaves_nothing_behind_sentinel(sentinel: Sentinel) -> None:
    leave_locks()
    with client(sentinel.master) as one:
        assert one.keys("*") == []
