"""A lease: the proof that a lock is held, as far as this process knows."""

from __future__ import annotations

import math
import weakref
from time import monotonic
from typing import Any

from django_redis_lock.support.process import Process, known_process


class Request:
    """What one acquisition asks for; sent as often as needed under the same token."""

    __slots__ = (
        "auto_renew",
        "lease_ms",
        "name",
        "process",
        "record",
        "sent",
        "since",
        "timeout",
        "token",
    )

    # A lock without end is first given with this lease and made endless by a second call, so that
    # a grant or a reply that nobody receives can't leave a lock that nobody can release.
    PROBATION = 10_000

    def __init__(
        self, name: str, token: str, timeout: float | None, record: str, *, auto_renew: bool = False
    ) -> None:
        self.name = name
        self.token = token
        self.timeout = timeout
        self.auto_renew = auto_renew
        self.record = record
        self.since: int | None = None
        self.lease_ms = self.PROBATION if timeout is None else milliseconds(timeout)
        self.sent = False  # and not taken back: the server may have carried it out, or do so yet
        self.process = known_process()

    @property
    def adrift(self) -> bool:
        """Whether the server may hold a lock for it which this process, that asked, gives up."""
        return self.sent and self.process is known_process()

    @property
    def longest(self) -> float:
        """Seconds after which a lock that was given for it has come free by itself."""
        return math.inf if self.timeout is None else self.timeout

    def join_queue(self, now_ms: int | None) -> None:
        """Write into the record since when (ms of the server's clock) this request waits.

        That is done once, before it joins the queue: its entry must stay the same to be found.
        """
        if self.since is None and now_ms is not None:
            self.since = now_ms
            self.record = f'{self.record[:-1]},"since":{now_ms}}}'

    def entry(self, channel: str) -> str:
        """Return how this request stands among the waiters of its lock."""
        return f"{channel} {self.token} {self.lease_ms} {self.record}"

    def granted(self, fence: int, deadline: float) -> Lease:
        """Return the lease that the server gave, which ends at ``deadline`` (monotonic)."""
        return Lease(self, fence, deadline)


class Lease:
    """A lock held under a token until a moment of the local monotonic clock."""

    __slots__ = (
        "__weakref__",
        "auto_renew",
        "deadline",
        "entries",
        "execution",
        "fence",
        "given_up",
        "lost",
        "name",
        "process",
        "record",
        "release_sent_at",
        "renew_until",
        "reported",
        "timeout",
        "token",
        "verify_by",
        "version",
    )

    def __init__(self, request: Request, fence: int, deadline: float) -> None:
        self.name = request.name
        self.token = request.token
        self.timeout = request.timeout
        self.auto_renew = request.auto_renew
        self.record = request.record
        self.fence = fence
        self.deadline = deadline
        self.lost = False  # known to be lost
        self.reported = False  # and the holder was told
        self.version = 0  # counts what the holder does to it
        # Until when (monotonic) a server that does not hear of this process keeps a lock that was
        # handed over to it; None once it is seen to be held.
        self.verify_by: float | None = None
        self.process: Process = request.process
        self.release_sent_at: float | None = None  # first, or what detaches it; if not answered
        self.given_up = False  # its release was begun, and is seen through in the background
        self.renew_until = math.inf  # (monotonic): no renewal lets it end later than that
        self.execution: weakref.ref[Any] | None = None  # whose it is, on a reentrant lease
        self.entries = 1

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock; infinite for a lease without end."""
        return max(0.0, self.deadline - monotonic())

    @property
    def passed(self) -> bool:
        """Whether the lease has ended by the local clock."""
        return monotonic() >= self.deadline

    def renewed(self, left_ms: int | None, asked_at: float) -> bool:
        """Take in the server's word on the lease left; return whether the lock is still held.

        It is -1 for no end, -2 for not held, and ``None`` where the backend keeps no leases.
        """
        if left_ms is None:
            pass
        elif left_ms < -1:
            self.lost = True
        else:
            self.deadline = math.inf if left_ms < 0 else asked_at + left_ms / 1000
            self.verify_by = None
            if not self.given_up:
                self.release_sent_at = None  # what was to detach it did not
        return not self.lost


def milliseconds(seconds: float) -> int:
    """Return a duration as whole milliseconds, exact for what a float of seconds can mean."""
    return round(seconds * 1000)
