"""Notices when callers can't be served, by asking for what they need the way they do."""

from __future__ import annotations

import time
from time import monotonic

from redis.exceptions import RedisError, ResponseError

from tests.chaos.site import Site
from tests.soak.heartbeat import Heartbeat
from tests.soak.history import Recorder

CLOCK_BEATS = 20
"""Beats from one comparison of the clocks to the next; the wall clock may be slewed."""


class Pulse(Heartbeat):
    """Asks all the time, and notes from when to when nothing good came of it."""

    def __init__(self, site: Site, recorder: Recorder) -> None:
        super().__init__(lambda since: recorder.note("outage", what="slow", since=since))
        self._site = site
        self._recorder = recorder
        self.good_at = monotonic()
        """When the last answer came that was a good one."""
        self._beats = 0

    def beat(self) -> None:
        """Ask once."""
        if self._beats % CLOCK_BEATS == 0 and self._site.fences_tell:
            self._recorder.note("clock", wall=time.time())
        self._beats += 1
        try:
            self._site.ask()
        except ResponseError:
            self._recorder.note("outage", what="refused", since=self.good_at)
        except (RedisError, OSError):
            self._recorder.note("outage", what="away", since=self.good_at)
        else:
            self.good_at = monotonic()
