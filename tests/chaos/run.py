"""One run from start to end: servers, callers, faults, calm, and a last look."""

from __future__ import annotations

from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock import lock, locks
from django_redis_lock.exceptions import LockUnavailable
from tests.chaos.crew import Crew
from tests.chaos.faults import Fault, name_of
from tests.chaos.heartbeat import Heartbeat, Pulse
from tests.chaos.history import Recorder
from tests.chaos.plan import ALL_NAMES, Plan, Role
from tests.chaos.sites import Site
from tests.chaos.stage import Stage
from tests.chaos.worker import set_up

SWEEP_SECONDS = 5.0
"""How long a lock that is not in use may take to come free, beyond its lease."""
SETTLING = 1.0
"""Seconds from the last fault to the calm of the callers."""
WARMING_UP = 1.0
LONGEST_PACE = 1.5
"""Seconds between two faults at the most."""


def run(
    site: Site, plan: Plan, roles: list[Role], faults: tuple[Fault, ...], storm: float, calm: float
) -> None:
    """Play faults to callers, then none for ``calm`` seconds; the history stays behind.

    This process is good for one run.
    """
    set_up(plan)
    site.prepare()
    recorder = Recorder(plan.directory, 0)
    with Heartbeat(recorder) as heart, Pulse(site, recorder) as pulse:
        with Crew(plan, roles, heart) as crew:
            stage = Stage(plan, site, crew, heart, pulse)
            stage.all_began()
            _play(stage, faults, storm)
            crew.all_resumed()
            stage.rest(SETTLING, SETTLING)
            plan.sign("calm").touch()
            stage.rest(calm, calm)
            stage.all_began()
            plan.sign("stop").touch()
            crew.drain()
            _sweep(plan, heart)
            crew.read_logs()
    locks.reset()
    recorder.close()


def _play(stage: Stage, faults: tuple[Fault, ...], seconds: float) -> None:
    """Play the faults like cards: each comes once before any comes again."""
    calm_at = monotonic() + seconds
    pace = min(LONGEST_PACE, seconds / 15)  # a short run has to get through the deck as well
    stage.rest(WARMING_UP, WARMING_UP)
    deck: list[Fault] = []
    while monotonic() < calm_at:
        if not deck:
            deck = list(faults)
            stage.dice.shuffle(deck)
        fault = deck.pop()
        try:
            played = fault(stage) is not False
        except (RedisError, LockUnavailable):
            played = False  # one of the earlier faults met our own connection
        if played:
            stage.recorder.note("fault", what=name_of(fault))
        else:
            deck.insert(0, fault)
        stage.rest(0.1 * pace, pace)


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
