"""The history of a run: what each process records, and how it is read back.

An event is a JSON object on one line, with its ``kind``, the number of its ``process`` (0 is the
driver) and ``at``, the moment it was over. An event that took time has ``since``, the moment it
began. Moments are seconds of the monotonic clock, which all processes share.

Of one handle (``handle``, unique in a run):
    requested  name, lease, renewed
    acquired   fence, until (the end of the lease as the handle promised it)
    refused
    confirmed  since, until: the server said that the lock is still held
    extending, releasing: about to ask for it; released: since
    lost, unavailable  since, doing: LockLost or LockNotOwned, LockUnavailable
    told       the signal lock_lost said that the lock is lost
    failed     doing, trace: any other error
Of any process: stalled (since): it did not run.
Of the driver:
    started, died, stuck, logged, paused (since), killed (since): worker, trace
    fault      what
    outage     since, what; cut: what, connections
    wiped, vote_lost  since: a server lost its data, or one of several servers did
    vote_missing  since: one of several servers did not vote
    unsettled  since: leases may have ended early
    forced     name, fence, since: a forced release
    left       keys
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

Event = dict[str, Any]


class Recorder:
    """Writes the history of one process, each event at once: a killed process loses nothing."""

    def __init__(self, directory: str | Path, process: int) -> None:
        self.process = process
        self._file = (Path(directory) / f"history-{process:05}.jsonl").open("ab", buffering=0)

    def note(self, kind: str, **fields: Any) -> None:
        """Record an event; it is over now, unless ``at`` says when."""
        event = {"kind": kind, "process": self.process, "at": monotonic(), **fields}
        os.write(self._file.fileno(), json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read(directory: str | Path) -> Iterator[Event]:
    """Yield the events of all processes, each process's own in their order."""
    for path in sorted(Path(directory).glob("history-*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)
