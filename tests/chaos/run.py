"""One run from start to end: servers, callers, faults, calm, and a last look."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from tests.chaos.crew import Crew
from tests.chaos.heartbeat import Heartbeat, Pulse
from tests.chaos.history import Recorder
from tests.chaos.plan import ALL_NAMES, Plan, Role
from tests.chaos.sites import Site, leftovers
from tests.chaos.stage import Stage
from tests.chaos.worker import set_up

SWEEP_SECONDS = 5.0
"""How long a lock that is not in use may take to come free, beyond its lease."""
SETTLING = 1.0
"""Seconds from the last fault to the calm of the callers."""


def run(
    site: Site,
    plan: Plan,
    roles: list[Role],
    storm: Callable[[Stage], None],
    *,
    calm: float,
    strict: bool,
) -> None:
    """Play ``storm`` to callers, then ``calm`` seconds without faults; the history stays behind.

    This process is good for one run. With ``strict`` nothing may be left on the servers after the
    calm that expires by itself.
    """
    set_up(plan)
    site.prepare()
    recorder = Recorder(plan.directory, 0)
    with Heartbeat(recorder) as heart, Pulse(site, recorder) as pulse:
        with Crew(plan, roles, heart) as crew:
            stage = Stage(plan, site, crew, heart, pulse)
            stage.settled_in()
            storm(stage)
            crew.all_resumed()
            calm_at = monotonic()
            stage.rest(SETTLING, SETTLING)
            plan.sign("calm").touch()
            stage.rest(calm, calm)
            stage.settled_in(calm_at)
            plan.sign("stop").touch()
            crew.drain()
            _sweep(plan, heart)
            crew.read_logs()
    locks.reset()
    if left := leftovers(site.masters(), crew.killed, strict=strict):
        recorder.note("left", keys=left)
    recorder.close()


def _sweep(plan: Plan, heart: Heartbeat) -> None:
    """Take and release every lock: each must come free in time, whatever its holders did."""
    for name in ALL_NAMES:
        swept = lock(name, timeout=5, blocking_timeout=1)
        since = monotonic()
        try:
            if heart.until(swept.acquire, plan.longest_lease + SWEEP_SECONDS):
                swept.release()
            else:
                holder = locks["default"].holder(name)
                heart.recorder.note("left", keys=[f"the lock {name!r}, held by {holder}"])
        except LockUnavailable as error:
            heart.recorder.note("failed", doing="sweep", trace=str(error), since=since)
