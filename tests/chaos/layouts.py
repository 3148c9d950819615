"""The layouts of servers, the faults that each is put through, and what it does not promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.chaos import faults
from tests.chaos.sites import ClusterSite, Independent, SentinelSite, Site
from tests.chaos.stage import Fault

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"

STOPS = (faults.client_stopped, faults.any_client_stopped, faults.server_stopped)
OTHERS = (
    *(faults.client_killed, faults.any_client_killed, faults.release_forced),
    *(faults.calls_cut, faults.scripts_flushed),
    *(faults.server_crashed, faults.server_restarted, faults.data_lost),
)
ON_ONE = (*OTHERS, *STOPS, faults.limits_set)
OF_WATCHED = (
    *(faults.client_killed, faults.any_client_stopped, faults.calls_cut, faults.scripts_flushed),
    *(faults.failover, faults.limits_set),
)
OF_REPLICAS = (faults.master_stopped, faults.replica_stopped, faults.replica_killed)
TWO_MASTERS = frozenset({"overlap", "promise broken", "fence went back", "fence given twice"})
"""A replica may not have heard of the last holder, and for a while there may be two masters."""


@dataclass(frozen=True)
class Layout:
    open: Callable[[], Site]
    """Starts the servers."""
    faults: tuple[Fault, ...]
    unpromised: frozenset[str] = frozenset()
    """Rules of the checker that it does not promise; docs/explanation/layouts.md says why."""
    promised: tuple[str, ...] = ("fences", "holding", "order")
    """What ``tests.judge`` has to judge."""
    shown: tuple[str, ...] = ("detach", "take_over", "downgrade", "set_limit")
    """What callers, or an operator, have to do in each run."""
    excused: tuple[str, ...] = ()
    """What ``tests.judge`` has to take as a time in which nothing is promised."""


LAYOUTS = {
    "queue": Layout(partial(Independent, REDIS), (*ON_ONE, faults.listeners_cut)),
    "blpop": Layout(partial(Independent, REDIS, WAIT="blpop"), ON_ONE),
    "poll": Layout(partial(Independent, REDIS, WAIT="poll"), ON_ONE),
    "redlock": Layout(
        partial(Independent, REDLOCK, 3),
        (*OTHERS, *STOPS),
        promised=("fences", "holding"),
        shown=("detach", "take_over"),
    ),
    "sentinel": Layout(
        SentinelSite, (*OF_WATCHED, faults.master_killed), TWO_MASTERS, excused=("unsettled",)
    ),
    "replicas": Layout(
        partial(SentinelSite, 2, waits=True), (*OF_WATCHED, faults.master_killed, *OF_REPLICAS)
    ),
    "cluster": Layout(ClusterSite, OF_WATCHED),
}
