"""When a lock may have been held: as the history shows, or possibly without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.holding import during
from tests.chaos.spans import Span, Spans
from tests.chaos.story import Hold, Request, Story

SLACK = 0.1
"""Seconds around what the history says, for what it can't say exactly."""
UNSEEN = 3.0
"""Seconds before a failed request ended within which it may have been granted the lock."""


class Occupation:
    """The spans of time in which a lock was not certainly free."""

    def __init__(self, story: Story, requests: list[Request], server: Spans) -> None:
        self._story = story
        self._server = server
        self._taken = Spans(
            [span for request in requests for span in self._spans(request)] + list(server)
        )
        self._waited_for = Spans(
            (request.began, request.ended) for request in requests if request.wait != 0
        )

    def free(self, request: Request, end: float) -> Span:
        """Return the longest time during a request in which the lock was certainly free."""
        longest = (end, end)
        stalls = self._story.stood_still(request.process)
        start = request.began
        for stall_start, stall_end in [*stalls.between(start, end), (end, end)]:
            gap = self._taken.longest_gap(start, max(start, stall_start))
            if gap[1] - gap[0] > longest[1] - longest[0]:
                longest = gap
            start = max(start, stall_end + SLACK)
        return longest

    def idle(self, request: Request) -> bool:
        """Return whether the lock was free and without waiters all through a request."""
        start, end = request.began - SLACK, request.ended + SLACK
        return not (self._taken.touch(start, end) or self._waited_for.touch(start, end))

    def _spans(self, request: Request) -> Iterator[Span]:
        hold = request.hold
        if hold is not None and hold.request is request:
            yield hold.granted - SLACK, self._over(hold)
        lease = request.lease
        # A paused process can be granted its locks, and can't say so before it goes on.
        for start, end in self._story.pauses(request.process).between(request.began, request.ended):
            yield start - SLACK, end + lease + SLACK
        start, end = request.ended - SLACK, request.ended + lease + SLACK
        if request.outcome == "killed":  # granted just before, or before the servers knew
            yield start, end + self._story.remembered + SLACK
        elif request.outcome in ("unavailable", "failed"):
            yield start - UNSEEN, end
        elif request.outcome in ("gave_up", "refused") and self._server.touch(
            request.ended - UNSEEN, request.ended + SLACK
        ):
            yield start, end  # the lock may have been granted, and could not be handed off

    def _over(self, hold: Hold) -> float:
        """Return when a hold had ended as far as waiters can know.

        A hold that ended early without a release told no waiter: for them it ends with its lease.
        """
        if hold.ended is None:
            return hold.latest_end + SLACK
        if during(hold, hold.ended, self._story.unsettled):
            return max(hold.ended, hold.latest_end + SLACK)
        return hold.ended
