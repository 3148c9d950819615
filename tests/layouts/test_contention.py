"""Counting contention by a clock that is stepped, without one server of a quorum, in a cluster."""

from __future__ import annotations

from typing import Any

import redis

from django_redis_lock import lock, locks
from tests.layouts.servers import Cluster, client
from tests.tools import eventually, leave_no_lease
from tests.tools.quorums import started
from tests.tools.stepped import SteppedServer

OPERATORS = {"CONTENTION": True, "GROUPS": {"a*": "a", "b*": "b"}}


def take(name: str, times: int = 1) -> None:
    for _ in range(times):
        with lock(name, timeout=20):
            pass
    locks["default"].send_counts()


def acquired(name: str) -> int:
    hour = locks["default"].contention(name)
    assert hour is not None
    return hour.total.acquired


def step(server: SteppedServer, admin: redis.Redis, seconds: float) -> None:
    """Set the clock, and wait until the server has noticed."""
    wanted = admin.time()[0] + seconds
    server.step(seconds)
    eventually(lambda: abs(admin.time()[0] - wanted) < 60)


def test_an_hour_ends_by_the_clock_of_the_server(settings: Any) -> None:
    """What is older vanishes; so does what a clock that is set back has put into the future."""
    with SteppedServer() as server, redis.Redis.from_url(server.url()) as admin:
        settings.LOCKS = {"default": {"LOCATION": server.url(), "OPERATORS": OPERATORS}}
        take("a", 3)
        step(server, admin, 50 * 60)
        take("a", 2)
        assert acquired("a") == 5
        step(server, admin, 20 * 60)
        assert acquired("a") == 2
        take("a")
        assert (acquired("a"), admin.hlen("lock-contention:a")) == (3, 2)
        step(server, admin, -7200)
        take("a")
        assert (acquired("a"), admin.hlen("lock-contention:a")) == (1, 1)
        step(server, admin, 3 * 3600)
        assert not admin.exists("lock-contention:a")
        leave_no_lease()


def test_a_quorum_counts_while_one_of_its_servers_is_away(settings: Any) -> None:
    """The server that has counted most is believed, and one that has missed some is not."""
    with started(3) as quorum:
        entry = quorum.entry(REJOIN_DELAY=0)
        settings.LOCKS = {"default": {**entry, "OPERATORS": OPERATORS}}
        take("a", 2)
        quorum.servers[0].kill()
        take("a", 3)
        quorum.servers[0].restart()
        take("a")
        assert acquired("a") == 6
        leave_no_lease()


def test_a_cluster_keeps_each_group_in_one_shard(cluster: Cluster, settings: Any) -> None:
    """Groups of one process are sent to the nodes that keep them."""
    before = settings.LOCKS["default"]
    settings.LOCKS = {"default": {**before, "OPERATORS": OPERATORS}}
    for name in ("a:1", "b:1", "single"):
        lock(name, timeout=20).acquire()
    take("a:2", 2)
    assert [acquired(name) for name in ("a:3", "b:3", "other")] == [3, 1, 1]
    keys = set()
    for server in cluster.masters():
        with client(server) as one:
            keys |= {key.split(":")[-1] for key in one.keys("lock-contention:{*}:*")}
    assert keys == {"a", "b", "other"}
