"""Chooses when which fault happens; a seed describes the choice."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from time import monotonic

from redis.exceptions import RedisError

from django_redis_lock.exceptions import LockUnavailable
from example_project.embedded import EmbeddedServer
from tests.soak.crew import Crew
from tests.soak.faults import Faults
from tests.soak.history import Recorder
from tests.soak.plan import Plan

WARMING_UP = 1.0
LONGEST_PACE = 1.5
"""Seconds; between two faults at the most."""


class Nemesis:
    """Deals the faults like cards: each comes once before any comes again, some of them twice."""

    def __init__(self, plan: Plan, server: EmbeddedServer, crew: Crew, recorder: Recorder) -> None:
        self._plan = plan
        self._recorder = recorder
        self._dice = random.Random(plan.seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = itertools.count()
        self._faults = Faults(plan, server, crew, recorder, self._dice, self._rest, self._later)

    def run(self) -> None:
        """Break things until the calm begins; then mend what is still broken."""
        deck: list[Callable[[], bool]] = []
        # A short run has to get through the deck as well.
        pace = min(LONGEST_PACE, (self._plan.calm_at - monotonic()) / 15)
        self._rest(WARMING_UP)
        extra: tuple[Callable[[], bool], ...] = ()
        while monotonic() < self._plan.calm_at:
            if not deck:
                deck = [*self._faults.all, *extra]
                extra = self._faults.frequent
                self._dice.shuffle(deck)
            self._deal(deck)
            self._rest(self._dice.uniform(0.1, 1.0) * pace)
        while self._due:
            heapq.heappop(self._due)[2]()
        self._faults.close()

    def _deal(self, deck: list[Callable[[], bool]]) -> None:
        fault = deck.pop()
        try:
            done = fault()
        except (RedisError, LockUnavailable):
            done = False  # one of the earlier faults met our own connection
        if done:
            self._recorder.note("fault", what=fault.__name__)
        else:
            deck.insert(0, fault)

    def _rest(self, seconds: float) -> None:
        """Let time pass, and do meanwhile what is due."""
        end = monotonic() + seconds
        while (now := monotonic()) < end:
            if self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
                continue
            until = min(end, self._due[0][0]) if self._due else end
            threading.Event().wait(until - now)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (monotonic() + seconds, next(self._tickets), action))
