"""Records when a process did not run, for whatever reason.

On a busy machine a process may stand still without being paused. The checker demands of callers
only what they could do while their process and the server were seen to run, and the driver counts
its patience in seconds in which it ran itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Self

from redis.exceptions import RedisError, ResponseError

from tests.chaos.history import Recorder
from tests.chaos.sites import Site

BEAT = 0.05
LATE = 0.1
"""Seconds; of a beat, and by how much it may be late without being recorded."""
PATIENCE = 60.0
"""Seconds after which what is waited for is taken not to come."""


class Heartbeat:
    """A thread that beats until it is stopped, and records every beat that was late."""

    kind = "stalled"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ran = 0.0
        """Seconds in which it beat in time."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Return whether a condition came true while this process ran for so many seconds."""
        deadline = self.ran + seconds
        while not condition():
            if self.ran >= deadline:
                return False
            threading.Event().wait(BEAT)
        return True

    def beat(self) -> None:
        """Do what a beat consists of."""

    def _run(self) -> None:
        since = monotonic()
        while not self._stopped.wait(BEAT):
            self.beat()
            now = monotonic()
            if now - since > BEAT + LATE:
                self.recorder.note(self.kind, since=since, what="slow")
            else:
                self.ran += now - since
            since = now


class Pulse(Heartbeat):
    """Asks all the time, and records from when to when it got no good answer."""

    kind = "outage"

    def __init__(self, site: Site, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._site = site
        self.good_at = monotonic()
        """When the last good answer came."""

    def beat(self) -> None:
        try:
            self._site.ask()
        except ResponseError:
            self.recorder.note("outage", what="refused", since=self.good_at)
        except (RedisError, OSError):
            self.recorder.note("outage", what="away", since=self.good_at)
        else:
            self.good_at = monotonic()
