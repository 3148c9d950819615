"""Notices when a process or the server is not running as it should, whoever made it so.

On a busy machine a process may stand still without being paused. What the checker demands of
callers it demands only while their process and the server were seen to run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from tests.soak.history import Recorder

BEAT = 0.05
LATE = 0.1
"""Seconds; of a beat, and by how much it may be late without being noted."""


class Heartbeat:
    """A thread that beats until it is stopped, and notes every beat that was late."""

    def __init__(self, note_late: Callable[[float], None]) -> None:
        self._note_late = note_late
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
        self._thread.join()

    def beat(self) -> None:
        """Do what a beat consists of."""

    def _run(self) -> None:
        since = monotonic()
        while not self._stopped.wait(BEAT):
            self.beat()
            now = monotonic()
            if now - since > BEAT + LATE:
                self._note_late(since)
            since = now


def of_process(recorder: Recorder) -> Heartbeat:
    """Return a heartbeat that notes when this process stood still."""
    return Heartbeat(lambda since: recorder.note("stalled", since=since))
