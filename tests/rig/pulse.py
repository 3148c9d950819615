"""Records when callers can't be served, by asking the servers the way callers do."""

from __future__ import annotations

import time
from time import monotonic

from redis.exceptions import RedisError, ResponseError

from tests.rig.heartbeat import Heartbeat
from tests.rig.history import Recorder
from tests.rig.sites import Site

CLOCK_BEATS = 20
"""Beats from one comparison of the clocks to the next; the wall clock may be slewed."""
SAME_MOMENT = 0.001
"""Seconds that may pass between the readings of two clocks that are compared."""


class Pulse(Heartbeat):
    """Asks all the time, and records from when to when it got no good answer."""

    kind = "outage"

    def __init__(self, site: Site, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._site = site
        self.good_at = monotonic()
        """When the last good answer came."""
        self._beats = 0

    def beat(self) -> None:
        if self._beats % CLOCK_BEATS == 0 and self._site.facts.fences_tell:
            self._compare_clocks()
        self._beats += 1
        try:
            self._site.ask()
        except ResponseError:
            self.recorder.note("outage", what="refused", since=self.good_at)
        except (RedisError, OSError):
            self.recorder.note("outage", what="away", since=self.good_at)
        else:
            self.good_at = monotonic()

    def _compare_clocks(self) -> None:
        """Record what both clocks read; not if this process stood still between the readings."""
        before, wall = monotonic(), time.time()
        if monotonic() - before < SAME_MOMENT:
            self.recorder.note("clock", wall=wall, at=before)
