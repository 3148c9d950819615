"""Chooses when which fault is played; a seed describes the choice."""

from __future__ import annotations

from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockUnavailable
from tests.rig.faults import FAULTS
from tests.rig.stage import Stage

FREQUENT = (
    "any client killed",
    "client killed",
    "any client stopped",
    "client stopped",
    "listeners cut",
    "release forced",
)
"""Those that leave the others something to do."""
PLAYED = (
    *FREQUENT,
    "calls cut",
    "scripts flushed",
    "server stopped",
    "server crashed",
    "server restarted",
    "data lost",
)
WARMING_UP = 1.0
LONGEST_PACE = 1.5
"""Seconds between two faults at the most."""
DOWNTIME = (0.0, 2.0)


def storm(stage: Stage, seconds: float) -> None:
    """Play the faults like cards: each comes once before any comes again, some of them twice."""
    calm_at = monotonic() + seconds
    pace = min(LONGEST_PACE, seconds / 15)  # a short run has to get through the deck as well
    stage.rest(WARMING_UP, WARMING_UP)
    deck: list[str] = []
    extra: tuple[str, ...] = ()
    while monotonic() < calm_at:
        if not deck:
            deck, extra = [*PLAYED, *extra], FREQUENT
            stage.dice.shuffle(deck)
        name = deck.pop()
        try:
            played = FAULTS[name].play(stage) is not False
        except (RedisError, LockUnavailable):
            played = False  # one of the earlier faults met our own connection
        if played:
            stage.recorder.note("fault", what=name)
        else:
            deck.insert(0, name)
        stage.rest(0.1 * pace, pace)
