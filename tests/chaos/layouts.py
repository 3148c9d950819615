"""What locks can be kept on: the layouts, the faults that each is put through, and its promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from django_redis_lock.backends.redis.backend import WAITING_SCHEMES
from tests.chaos.faults import Fault
from tests.chaos.plan import LONGEST_LEASE
from tests.chaos.site import Independent, Site

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"
REDLOCK = "django_redis_lock.backends.redlock.RedlockLockBackend"
GETSET = "django_redis_lock.backends.getset.GetSetLockBackend"

EVERY_PROMISE = frozenset({"double holds", "fences", "lost waiters", "stuck locks", "other"})


@dataclass(frozen=True)
class Layout:
    """One entry of the registry."""

    name: str
    open: Callable[[Fault], Site]
    """Starts the servers, made ready for a fault."""
    faults: tuple[str, ...]
    unpromised: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By fault, what is counted and not promised; the documentation says why."""
    rules_off: frozenset[str] = frozenset()
    """Rules of the checker that this layout does not claim to keep."""


def independent(
    count: int = 1,
    *,
    kept_for: float = 0.0,
    rejoins_in: float = 0.0,
    clock_kept_for: float = 0.0,
    fences_tell: bool = True,
    marker: bytes = b"EVAL",
    **entry: Any,
) -> Callable[[Fault], Site]:
    """Return what opens a site of servers that know nothing of each other."""

    def open_(fault: Fault) -> Site:
        return Independent(
            entry,
            count,
            proxied=fault.proxied,
            persist=fault.persist,
            stepped=fault.stepped,
            kept_for=kept_for,
            rejoins_in=rejoins_in,
            clock_kept_for=clock_kept_for,
            fences_tell=fences_tell,
            marker=marker,
        )

    return open_


NETWORK = ("slow network", "lost replies", "cut connections", "half open", "black hole")
CALLERS = ("client killed", "client stopped", "waiters stopped")
SERVERS = ("server stopped", "server restarted", "server crashed", "data lost")
CLOCK = ("clock set forward", "clock set back")
REFUSALS = ("disk broken", "out of memory", "read only")

UNHEARD = frozenset({"double holds"})
"""Replication is asynchronous, so a replica may not have heard of the last holder."""
TWO_MASTERS = frozenset({"double holds", "fences"})
"""And for a while there may be two masters, each of which gives locks."""


def waiting_by(scheme: str, kept_for: float = 0.0) -> Callable[[Fault], Site]:
    """Return what opens one server where callers wait in some way."""
    return independent(BACKEND=REDIS, OPTIONS={"WAIT": scheme}, kept_for=kept_for)


def sentinel(_fault: Fault) -> Site:
    """Open a master and a replica under three sentinels."""
    from tests.chaos.watched import SentinelSite

    return SentinelSite({})


def cluster(_fault: Fault) -> Site:
    """Open a cluster of three masters with a replica each."""
    from tests.chaos.watched import ClusterSite

    return ClusterSite({})


ALL = (
    Layout(
        "standalone",
        independent(BACKEND=REDIS),
        (*NETWORK, *CALLERS, *SERVERS, *CLOCK, *REFUSALS),
    ),
    Layout(
        "blpop",
        waiting_by("blpop"),
        ("half open", "black hole", *CALLERS, "server stopped", "data lost", "clock set forward"),
    ),
    Layout(
        "poll",
        waiting_by("poll", kept_for=2.0),
        ("cut connections", *CALLERS, "server stopped", "data lost"),
        # Each waiter that died keeps the lock while its turn lasts.
        unpromised={"client killed": frozenset({"lost waiters"})},
        rules_off=frozenset({"promise too long"}),  # a fence is given with the turn, before a lease
    ),
    Layout(
        "redlock",
        # A server that was started anew does not vote before the longest lease has passed.
        independent(
            3,
            BACKEND=REDLOCK,
            OPTIONS={"REJOIN_DELAY": LONGEST_LEASE},
            rejoins_in=LONGEST_LEASE,
            fences_tell=False,
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
        independent(BACKEND=GETSET, clock_kept_for=5.0, fences_tell=False, marker=b"lock:"),
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
        sentinel,
        ("client killed", "waiters stopped", "failover", "master killed", "master stopped"),
        unpromised={
            "failover": TWO_MASTERS,  # the old one learns of it last
            "master killed": UNHEARD,
            "master stopped": TWO_MASTERS,
        },
        rules_off=frozenset({"overtaken"}),  # the line may be known to one of two masters only
    ),
    Layout(
        "cluster",
        cluster,
        (
            *("client killed", "waiters stopped"),
            *("failover", "master killed", "master stopped", "resharding"),
        ),
        # A failover in good order waits for the replica, so it is no excuse.
        unpromised={"master killed": UNHEARD, "master stopped": TWO_MASTERS},
        rules_off=frozenset({"overtaken"}),
    ),
)


def _is_there(layout: Layout) -> bool:
    """Return whether this checkout has what a layout is made of."""
    if layout.name in {"blpop", "poll"}:
        return layout.name in WAITING_SCHEMES
    needed = {
        "redlock": "django_redis_lock.backends.redlock",
        "getset": "django_redis_lock.backends.getset",
        "sentinel": "tests.layouts.servers",
        "cluster": "tests.layouts.servers",
    }.get(layout.name, __name__)
    return find_spec(needed.rpartition(".")[0]) is not None and find_spec(needed) is not None


LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in ALL if _is_there(layout)}
