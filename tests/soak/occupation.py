"""When somebody may have held a lock: seen in the history, or possibly without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator

from tests.soak.spans import Span, Spans
from tests.soak.story import Hold, Request, Story

SLACK = 0.1
"""Seconds around what the history says, for what it can't say exactly."""
UNSEEN = 3.0
"""Seconds before a failed request ended within which it may have been given the lock."""


class Occupation:
    """The spans of time in which a lock was not certainly free."""

    def __init__(self, story: Story, name: str, requests: list[Request], server: Spans) -> None:
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
        process = self._story.process(request.process)
        start = request.began
        for stall_start, stall_end in [*process.between(start, end), (end, end)]:
            gap = self._taken.longest_gap(start, max(start, stall_start))
            if gap[1] - gap[0] > longest[1] - longest[0]:
                longest = gap
            start = max(start, stall_end + SLACK)
        return longest

    def idle(self, request: Request) -> bool:
        """Return whether the lock was free, and nobody waited for it, all through a request."""
        start, end = request.began - SLACK, request.ended + SLACK
        return not (self._taken.touch(start, end) or self._waited_for.touch(start, end))

    def _spans(self, request: Request) -> Iterator[Span]:
        hold = request.hold
        if hold is not None and hold.request is request:
            yield hold.granted - SLACK, self._over(hold)
        yield from self._while_paused(request)
        lease = request.lease + self._later(request.began)
        start, end = request.ended - SLACK, request.ended + lease + SLACK
        if request.outcome == "killed":
            # Given just before, and killed before it could say so; or the server did not know yet.
            yield start, end + SLACK
        elif request.outcome in ("unavailable", "failed"):
            yield start - UNSEEN, end
        elif request.outcome in ("gave_up", "refused") and self._server.touch(
            request.ended - UNSEEN, request.ended + SLACK
        ):
            yield start, end  # the lock may have been given, and could not be passed on

    def _while_paused(self, request: Request) -> Iterator[Span]:
        """A paused process can be given its locks, and can't say so before it goes on."""
        pauses = self._story.pauses.get(request.process)
        if pauses is not None:
            for start, end in pauses.between(request.began, request.ended):
                lease = request.lease + self._later(request.began)
                yield start - SLACK, end + lease + SLACK

    def _over(self, hold: Hold) -> float:
        """Return when a hold had ended, as far as those who wait can know.

        One that ended early by itself told nobody, so it ends for them when its lease would have.
        """
        if hold.ended is None:
            return hold.latest_end + self._later(hold.granted) + SLACK
        if any(since <= hold.ended and at >= hold.granted for since, at in self._story.unsettled):
            return max(hold.ended, hold.latest_end + SLACK)
        return hold.ended

    def _later(self, moment: float) -> float:
        """Return by how many seconds the end of a lease was put off that began at a moment."""
        return sum(seconds for since, seconds in self._story.postponed if since >= moment - SLACK)
