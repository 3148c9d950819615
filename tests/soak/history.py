"""The history of a run: what each process writes down, and how it is read back.

An event is a JSON object on one line, with its ``kind``, the number of its ``process`` (0 is the
driver) and ``at``, the moment it was over by the monotonic clock, which all processes share. An
event that took time has ``since``, the moment it began.

Of one handle (``handle``, unique in a run):
    requested  name, wait (None: without limit, 0: not at all, else seconds), lease, renewed, and
               inside: the handle of the same caller that may be entered again
    acquired   fence, until (the end of the lease as the handle promised it)
    refused, gave_up (interrupted or cancelled), abandoned (held, and dropped unreleased)
    confirmed  since, until: the server was asked, and said that the lock is still held
    extending  about to ask for a lease of upto seconds; releasing; released: since
    lost, unavailable  since, doing: LockLost or LockNotOwned, LockUnavailable
    failed     doing, trace: anything else
Of a worker: stalled (since), ended.
Of the driver: clock (wall: what the wall clock reads), started, killed (worker, since), paused,
    resumed, died, stuck (worker, trace), outage (since, what), cut (what, connections), wiped
    (since), unsettled (since: leases may have ended early), postponed (since, seconds: they end
    later), fault (what), broken (name, fence, since), left (keys), logged (worker, trace), calm,
    drained.
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
    """Writes the history of one process; every event reaches the file before the call returns.

    Unbuffered, so a process that is killed loses nothing, and threads need no mutex.
    """

    def __init__(self, directory: str | Path, process: int) -> None:
        self.process = process
        self._file = (Path(directory) / f"history-{process:05}.jsonl").open("ab", buffering=0)

    def note(self, kind: str, **fields: Any) -> None:
        """Write an event down; it is over now, unless ``at`` says when."""
        event = {"kind": kind, "process": self.process, "at": monotonic(), **fields}
        os.write(self._file.fileno(), json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(directory: str | Path) -> Iterator[Event]:
    """Yield the events of all processes, each process's own in their order."""
    for path in sorted(Path(directory).glob("history-*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)
