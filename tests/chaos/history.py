"""The history of a run, as others' tools read it too: JSON lines in the manner of Jepsen.

Each event has ``time`` (seconds of the monotonic clock, which all processes share), ``process``, a
``type`` and ``f``, what it is about. Events of one handle have ``handle``, unique in a run.

Operations of a handle are an ``invoke``, and at most one of ``ok`` (it happened), ``fail`` (it
certainly did not) and ``info`` (unknown: LockUnavailable) of the same handle and f. Where a process
was killed, the second is missing.
    acquire    invoke: name, lease (s), renewed, wait (s, null: no limit), mode (exclusive, shared),
               limit (of a semaphore, else null); ok: token_id, fence, until; fail: not acquired
    take_over  as acquire, and the ticket: the token_id of what is taken over
    confirm    (ensure_held), extend, reacquire, downgrade  ok: fence, until
    detach     invoke: ticket, until
    release
``until`` is the end of the lease as the handle promises it. A ``fail`` with ``error`` is LockLost
or LockNotOwned. An operator's ``set_limit`` (name, limit; null: cleared) is an operation as well.

All other events are ``info``. If what they tell of took time, ``since`` is when it began.
    queued, lost   of a handle: the signals lock_waiting and lock_lost
    stalled        of a process: it did not run
    failed         doing, trace: an error that should not be
Of the driver, process 0, which Jepsen calls the nemesis:
    run            layout, seed, tolerance (s by which leases may end early); promised: the rules;
                   excused: the events in whose time none is
    started, died, stuck, logged, paused (since), killed (since): worker, trace
    fault          what
    outage         since, what; cut: what, connections
    wiped, vote_lost  since: a server lost its data, or one of several servers did
    vote_missing   since: one of several servers did not vote
    unsettled      since: leases may have ended early
    forced         name, since: a forced release; fence, token_id (null: unknown) of the hold
    left           keys
"""

from __future__ import annotations

import gzip
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

    def note(self, f: str, type: str = "info", **values: Any) -> None:
        """Record an event; it is over now, unless ``time`` says when."""
        event = {"time": monotonic(), "process": self.process, "type": type, "f": f, **values}
        os.write(self._file.fileno(), json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read(directory: str | Path) -> Iterator[Event]:
    """Yield the events of all processes, each process's own in their order."""
    for path in sorted(Path(directory).glob("history-*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def publish(directory: str | Path, path: Path) -> None:
    """Write the events of a run into one file, in their order."""
    events = sorted(read(directory), key=lambda event: event["time"])
    text = "".join(f"{json.dumps(event, separators=(',', ':'))}\n" for event in events)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
