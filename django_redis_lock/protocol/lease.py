"""A lease: the proof that a lock is held, as far as this process knows."""

from __future__ import annotations

import math
import weakref
from time import monotonic
from typing import Any

from django_redis_lock.support.process import Process, known_process


class Request:
    """What one acquisition asks for. It keeps its token however often it is sent."""

    # Milliseconds. A lock without end is first taken with this lease, and made endless by a second
    # call. So a grant or a reply that is lost can't leave a lock that nobody can release.
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
        self.when_waiting: Any = None  # returns the steps to take once, when it begins to wait
        self.until = math.inf  # monotonic; when its caller gives up on a silent server
        self.when_held: Any = None  # the step to take at each look that finds it held; may raise
        self.sent = False  # and not withdrawn: the server may have carried it out, or still may
        self.under_way = False  # sent and not answered, so that a call may still arrive
        self.process = known_process()

    @property
    def adrift(self) -> bool:
        """Whether the server may hold a lock for it that this process gives up."""
        return self.sent and self.process is known_process()

    @property
    def longest(self) -> float:
        """Seconds after which a lock that was taken for it expires."""
        return math.inf if self.timeout is None else self.timeout

    def join_queue(self, now_ms: int | None) -> None:
        """Write into the record since when (ms of the server's clock) this request waits.

        That is done once, before it joins the queue: its entry must stay the same to be found.
        """
        if self.since is None and now_ms is not None:
            self.since = now_ms
            self.record = f'{self.record[:-1]},"since":{now_ms}}}'

    def entry(self, channel: str) -> str:
        """Return the entry of this request in the queue of its lock."""
        return f"{channel} {self.token} {self.lease_ms} {self.record}"

    def granted(self, fence: int, deadline: float) -> Lease:
        """Return the lease that the server granted until ``deadline`` (monotonic)."""
        return Lease(self, fence, deadline)


class Lease:
    """A lock held under a token until a moment of the local monotonic clock."""

    def __init__(self, request: Request, fence: int, deadline: float) -> None:
        self.name = request.name
        self.token = request.token
        self.timeout = request.timeout
        self.auto_renew = request.auto_renew
        self.record = request.record
        self.fence = fence
        self.deadline = deadline
        # The longest that was asked for (s). The server may not know that it was made shorter.
        self.longest = request.longest
        self.lost = False  # known to be lost
        self.reported = False  # and its holder was told
        self.version = 0  # counts the calls by which its holder sets it
        self.being_set: frozenset[object] = frozenset()  # the calls of these that are under way
        # Until when (monotonic) the server keeps a lock that was handed off and not claimed; None
        # once the lease is confirmed.
        self.verify_by: float | None = None
        self.process: Process = request.process
        # When (monotonic) a release or a detach that was not answered was first sent.
        self.release_sent_at: float | None = None
        self.given_up = False  # its release was begun, and is completed in the background
        self.renew_until = math.inf  # monotonic; no renewal sets a later end
        self.execution: weakref.ref[Any] | None = None  # the thread, greenlet or task that holds it
        self.entries = 1
        if made is not None:
            made.add(self)

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock; infinite for a lease without end."""
        return max(0.0, self.deadline - monotonic())

    @property
    def passed(self) -> bool:
        """Whether the lease has ended by the local clock."""
        return monotonic() >= self.deadline

    def renewed(self, left_ms: int | None, asked_at: float) -> bool:
        """Note what the server says is left of the lease; return whether the lock is still held.

        ``left_ms`` is -1 for no end, -2 for not held, and ``None`` if the server can't tell.
        """
        if left_ms is None:
            pass
        elif left_ms < -1:
            self.lost = True
        else:
            self.deadline = math.inf if left_ms < 0 else asked_at + left_ms / 1000
            self.verify_by = None
            if not self.given_up:
                self.release_sent_at = None  # the detach was not carried out
        return not self.lost


made: weakref.WeakSet[Lease] | None = None
"""The leases that this process holds or held, where ``testing`` wants to know them."""


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, rounded so that 0.29 s is 290 ms."""
    return round(seconds * 1000)
