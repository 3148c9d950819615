"""Chooses when which fault is played; a seed describes the choice."""

from __future__ import annotations

from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockUnavailable
from tests.chaos.faults import Fault, name_of
from tests.chaos.stage import Stage

WARMING_UP = 1.0
LONGEST_PACE = 1.5
"""Seconds between two faults at the most."""


def storm(stage: Stage, faults: tuple[Fault, ...], seconds: float) -> None:
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
