"""What locks can be kept on: the layouts, the faults that each is put through, and its promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.faults import Fault
from tests.chaos.site import Independent, Site

REDIS = "django_redis_lock.backends.redis.RedisLockBackend"

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


def independent(count: int = 1, **entry: Any) -> Callable[[Fault], Site]:
    """Return what opens a site of servers that know nothing of each other."""

    def open_(fault: Fault) -> Site:
        return Independent(
            entry,
            count,
            proxied=fault.proxied,
            persist=fault.persist,
            stepped=fault.stepped,
        )

    return open_


NETWORK = ("slow network", "lost replies", "cut connections", "half open", "black hole")
CALLERS = ("client killed", "client stopped")
SERVERS = ("server stopped", "server restarted", "server crashed", "data lost")
CLOCK = ("clock set forward", "clock set back")
REFUSALS = ("disk broken", "out of memory", "read only")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "standalone",
            independent(BACKEND=REDIS),
            (*NETWORK, *CALLERS, *SERVERS, *CLOCK, *REFUSALS),
        ),
    )
}
