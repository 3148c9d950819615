"""The rules on waiting: nobody left behind, nobody late, nobody overtaken, nobody sent off wrongly.

Rules of time hold only while everything runs. Where the server was away or slow, a connection was
cut, or the caller's process stood still, the time does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.soak.occupation import Occupation
from tests.soak.spans import Span, Spans
from tests.soak.story import Request, Story, by_name
from tests.soak.verdict import Verdict, Violation

LEFT_BEHIND = 0.6
"""Seconds for which a lock may be free while somebody waits."""
LATE = 0.5
"""Seconds by which an answer may come after the end of the wait."""
EARLY = 0.005
"""Seconds by which a refusal may come before the end of the wait."""
QUEUED = 0.25
"""Seconds in which a request that comes back to the line has asked for its place."""
AFTER_OUTAGE = 0.5
LONGEST_PAUSE = 1.5
"""Seconds after an outage in which waiters come back: they pause between tries, for the longer the
longer it lasts, up to a limit."""
OUTAGE_COSTS = 4.0
"""Seconds by which an outage may delay an answer beyond its own length: further tries."""
AFTER_CUT = 0.5


def judge(story: Story, verdict: Verdict) -> None:
    """Add the violations of the rules on waiting."""
    server = Spans(
        [*_outages(story.server), *((at - AFTER_CUT, at + AFTER_CUT) for at in story.cuts)]
    )
    longest = 0.0
    in_line = 0
    lasted = max(story.end - min((item.began for item in story.requests), default=0.0), 1.0)
    for name, requests in by_name(story.requests).items():
        occupation = Occupation(story, name, requests, server)
        for request in requests:
            gap = _left_behind(request, occupation, story, verdict)
            longest = max(longest, gap)
            _unpunctual(request, occupation, story, verdict)
        in_line += _overtaken(requests, story, server, verdict)
    verdict.figures["undisturbed server (%)"] = round(
        100 - 100 * server.covered(0, story.end) / lasted
    )
    verdict.figures["longest wait beside a free lock (ms)"] = round(longest * 1000)
    verdict.figures["pairs in line compared"] = in_line


def _outages(server: Spans) -> Iterator[Span]:
    """Yield each outage and the time in which waiters come back from it.

    One that begins while they come back from another finds them pausing for as long as before.
    """
    began = back = -math.inf
    for start, end in server:
        if start > back:
            began = start
        back = end + AFTER_OUTAGE + min(LONGEST_PAUSE, end - began)
        yield start - AFTER_CUT, back


def _left_behind(request: Request, occupation: Occupation, story: Story, verdict: Verdict) -> float:
    """Find a request that waited while nobody can have held the lock; return for how long."""
    if request.wait == 0:
        return 0.0
    end = request.ended if request.hold is None else request.hold.granted
    start, until = occupation.free(request, end)
    if until - start > LEFT_BEHIND:
        verdict.violations.append(
            Violation(
                "left behind",
                f"{request} waited for {until - start:.3f} s from {start:.6f} while nobody held "
                f"the lock",
                (request.handle,),
                start,
            )
        )
    return until - start


def _unpunctual(request: Request, occupation: Occupation, story: Story, verdict: Verdict) -> None:
    """Find a request that was answered after its time, or refused before it or for no reason."""
    if request.wait is None or request.outcome in ("killed", "gave_up", ""):
        return
    took = request.ended - request.began
    allowed = (
        request.wait + LATE + story.process(request.process).covered(request.began, request.ended)
    )
    if story.server.touch(request.began - 0.1, request.ended):
        allowed += story.server.covered(request.began, request.ended) + OUTAGE_COSTS
    problem = ""
    if took > allowed:
        problem = f"was answered after {took:.3f} s, and not within {request.wait:.3f} s"
    elif request.outcome == "refused" and took < request.wait - EARLY:
        problem = f"was refused after {took:.3f} s, though it would wait {request.wait:.3f} s"
    elif request.wait == 0 and request.outcome == "refused" and occupation.idle(request):
        problem = "was refused though nobody held the lock or waited for it"
    if problem:
        verdict.violations.append(
            Violation("unpunctual", f"{request} {problem}", (request.handle,), request.ended)
        )


def _overtaken(requests: list[Request], story: Story, server: Spans, verdict: Verdict) -> int:
    """Find requests that got the lock before one that certainly stood in line before them.

    A request is in line when it sleeps there, and again some time after a disturbance, in which it
    may have lost its place. A request that begins after that is behind it.
    Returns how many pairs could be compared.
    """
    pairs = 0
    ahead: list[Request] = []
    for request in sorted(requests, key=lambda item: item.began):
        ahead = [item for item in ahead if item.ended > request.began]
        hold = request.hold
        if hold is not None and hold.request is request:
            for first in ahead:
                if not _in_line(first, request.began, hold.granted, story, server):
                    continue
                pairs += 1
                if _comes_after(first, hold.granted):
                    verdict.violations.append(
                        Violation(
                            "overtaken",
                            f"{request} got the lock before {first}, which began to wait "
                            f"{request.began - first.began:.3f} s earlier",
                            (first.handle, request.handle),
                            hold.granted,
                        )
                    )
        if request.wait != 0:
            ahead.append(request)
    return pairs


def _in_line(first: Request, began: float, granted: float, story: Story, server: Spans) -> bool:
    """Return whether a request stood in line from when another began until that got the lock.

    Or until it left the line, which was later if it was not passed over.
    """
    start, end = began - QUEUED, min(granted, first.ended)
    return (
        first.in_line <= began
        and not server.touch(start, end)
        and not story.process(first.process).touch(start, end)
    )


def _comes_after(first: Request, granted: float) -> bool:
    """Return whether a request was still in line when another got the lock."""
    if first.hold is not None:
        return first.hold.granted > granted
    return first.ended - QUEUED > granted
