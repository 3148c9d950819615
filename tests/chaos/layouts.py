"""The layouts of servers, the faults that each is put through, and its promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.rig.faults import Fault
from tests.rig.plan import longest_lease
from tests.rig.sites import Facts, Independent, Site
from tests.rig.watched import ClusterSite, SentinelSite

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"

QUIET_LEASES = (0.6, 1.2, 2.5)
"""Seconds; a killed holder's lease is waited for at the end of every run."""
NETWORK = ("slow network", "lost replies", "cut connections", "half open", "black hole")
CALLERS = ("client killed", "client stopped", "waiters stopped")
SERVERS = ("server stopped", "server restarted", "server crashed", "data lost")
CLOCK = ("clock set forward", "clock set back")
REFUSALS = ("disk broken", "out of memory", "read only")

UNHEARD = frozenset({"double holds"})
"""Replication is asynchronous, so a replica may not have heard of the last holder."""
TWO_MASTERS = frozenset({"double holds", "fences"})
"""And for a while there may be two masters, each of which grants locks."""


@dataclass(frozen=True)
class Layout:
    """One layout of servers."""

    name: str
    open: Callable[[Fault], Site]
    """Starts the servers, made ready for a fault."""
    faults: tuple[str, ...]
    unpromised: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By fault, the columns that are counted and not promised; the documentation says why."""
    rules_off: frozenset[str] = frozenset()
    """Rules of the checker that this layout does not promise to keep."""


def independent(entry: dict[str, Any], **options: Any) -> Callable[[Fault], Site]:
    """Return what opens a site of servers that know nothing of each other."""
    return lambda fault: Independent(entry, proxied=fault.proxied, stepped=fault.stepped, **options)


ALL = (
    Layout(
        "standalone",
        independent({"BACKEND": REDIS}),
        (*NETWORK, *CALLERS, *SERVERS, *CLOCK, *REFUSALS),
    ),
    Layout(
        "blpop",
        independent(
            entry={"BACKEND": REDIS, "OPTIONS": {"WAIT": "blpop"}}, facts=Facts(remembers=5.0)
        ),
        ("half open", "black hole", *CALLERS, "server stopped", "data lost", "clock set forward"),
    ),
    Layout(
        "poll",
        independent(
            entry={"BACKEND": REDIS, "OPTIONS": {"WAIT": "poll"}}, facts=Facts(remembers=2.0)
        ),
        ("cut connections", *CALLERS, "server stopped", "data lost"),
        # Each waiter that died keeps the lock while its turn lasts.
        unpromised={"client killed": frozenset({"lost waiters"})},
        rules_off=frozenset({"promise too long"}),  # the fence is taken at the turn, not the grant
    ),
    Layout(
        "redlock",
        # A server that was started anew does not vote before the longest lease has passed.
        independent(
            {"BACKEND": REDLOCK, "OPTIONS": {"REJOIN_DELAY": longest_lease(QUIET_LEASES)}},
            count=3,
            facts=Facts(rejoins_in=longest_lease(QUIET_LEASES), fences_tell=False),
        ),
        (
            *("lost replies", "cut connections", "black hole"),
            *CALLERS,
            *("server stopped", "server crashed", "data lost"),
            *("clock set forward", "out of memory"),
        ),
        rules_off=frozenset({"overtaken"}),
    ),
    Layout(
        "getset",
        independent(
            {"BACKEND": GETSET},
            facts=Facts(clock_kept_for=5.0, fences_tell=False, marker=b"lock:"),
        ),
        (
            *("lost replies", "cut connections"),
            *CALLERS,
            *("server stopped", "server crashed", "data lost", "clock set forward", "read only"),
        ),
        # Between two commands of one step anything can happen to a lease.
        unpromised=dict.fromkeys(("client stopped", "server stopped"), frozenset({"double holds"})),
        rules_off=frozenset({"overtaken"}),
    ),
    Layout(
        "sentinel",
        lambda _: SentinelSite(),
        ("client killed", "waiters stopped", "failover", "master killed", "master stopped"),
        unpromised={
            "failover": TWO_MASTERS,  # the old one learns of it last
            "master killed": UNHEARD,
            "master stopped": TWO_MASTERS,
        },
        rules_off=frozenset({"overtaken"}),  # the queue may be known to one of two masters only
    ),
    Layout(
        "cluster",
        lambda _: ClusterSite(),
        (
            *("client killed", "waiters stopped"),
            *("failover", "master killed", "master stopped", "resharding"),
        ),
        # A failover in good order waits for the replica, so it is no excuse.
        unpromised={"master killed": UNHEARD, "master stopped": TWO_MASTERS},
        rules_off=frozenset({"overtaken"}),
    ),
)

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in ALL}
