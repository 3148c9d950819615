"""The layouts of servers, the faults that each is put through, and what it does not promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.plan import longest_lease
from tests.chaos.sites import ClusterSite, Facts, Independent, SentinelSite, Site

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"

STOPS = (faults.client_stopped, faults.any_client_stopped, faults.server_stopped)
OTHERS = (
    *(faults.client_killed, faults.any_client_killed, faults.release_forced),
    *(faults.calls_cut, faults.scripts_flushed),
    *(faults.server_crashed, faults.server_restarted, faults.data_lost),
)
OF_WATCHED = (
    *(faults.client_killed, faults.any_client_stopped, faults.calls_cut, faults.scripts_flushed),
    faults.failover,
)
TWO_MASTERS = frozenset({"overlap", "promise broken", "fence went back", "fence given twice"})
"""A replica may not have heard of the last holder, and for a while there may be two masters."""


@dataclass(frozen=True)
class Layout:
    """One layout of servers."""

    open: Callable[[], Site]
    """Starts the servers."""
    faults: tuple[Fault, ...]
    unpromised: frozenset[str] = frozenset()
    """Rules of the checker that it does not promise; docs/explanation/failures.md says why."""


def one(facts: Facts = Site.facts, **entry: Any) -> Callable[[], Site]:
    return lambda: Independent({"BACKEND": REDIS, **entry}, facts=facts)


def three(leases: tuple[float, ...]) -> Site:
    """Start a quorum. A server that was started anew does not vote before the longest lease."""
    rejoins_in = longest_lease(leases)
    entry = {"BACKEND": REDLOCK, "OPTIONS": {"REJOIN_DELAY": rejoins_in}}
    return Independent(entry, count=3, facts=Facts(rejoins_in=rejoins_in, fences_tell=False))


QUIET_LEASES = (0.6, 1.2, 6.0)
"""Seconds."""
LAYOUTS = {
    "queue": Layout(one(), (*OTHERS, *STOPS, faults.listeners_cut)),
    "blpop": Layout(one(Facts(remembers=5.0), OPTIONS={"WAIT": "blpop"}), (*OTHERS, *STOPS)),
    "poll": Layout(
        one(Facts(remembers=2.0), OPTIONS={"WAIT": "poll"}),
        (*OTHERS, *STOPS),
        # Each waiter that died keeps the lock while its turn lasts, from which a fence is taken.
        frozenset({"left behind", "promise too long"}),
    ),
    "redlock": Layout(lambda: three(QUIET_LEASES), (*OTHERS, *STOPS)),
    "sentinel": Layout(SentinelSite, (*OF_WATCHED, faults.master_killed), TWO_MASTERS),
    "cluster": Layout(ClusterSite, OF_WATCHED),
}
