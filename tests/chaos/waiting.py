"""The rules on waiting: no waiter left behind, late, or refused without a reason.

They hold only while everything runs. Time in which the server was away or slow, a connection was
cut, or the caller's process stood still does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.chaos.occupation import Occupation
from tests.chaos.spans import Span, Spans
from tests.chaos.story import Request, Story, Verdict, Violation, by_name

LEFT_BEHIND = 0.6
"""Seconds for which a lock may be free beside a waiter."""
LATE = 0.5
"""Seconds by which an answer may come after the end of the wait."""
EARLY = 0.005
"""Seconds by which a refusal may come before the end of the wait."""
AFTER_OUTAGE = 0.5
LONGEST_PAUSE = 1.5
"""Seconds after an outage in which waiters return: they pause between tries, longer after a longer
outage, up to a limit."""
OUTAGE_COSTS = 4.0
"""Seconds by which an outage may delay an answer beyond its own length: further tries."""
AFTER_CUT = 0.5
"""Seconds after which a connection that was cut is replaced, once a waiter reads from it."""


def judge(story: Story, verdict: Verdict) -> None:
    cuts = ((at - AFTER_CUT, at + AFTER_CUT) for at in story.cuts)
    server = Spans([*_outages(story.server), *cuts])
    longest = 0.0
    for requests in by_name(story.requests).values():
        occupation = Occupation(story, requests, server)
        for request in requests:
            longest = max(longest, _left_behind(request, occupation, verdict))
            _unpunctual(request, occupation, story, verdict)
    lasted = max(story.end - min((item.began for item in story.requests), default=0.0), 1.0)
    undisturbed = 100 - 100 * server.covered(0, story.end) / lasted
    verdict.figures["undisturbed server (%)"] = round(undisturbed)
    verdict.figures["longest wait beside a free lock (ms)"] = round(longest * 1000)


def _outages(server: Spans) -> Iterator[Span]:
    """Yield each outage and the time in which waiters return after it.

    An outage that begins while they return from another finds them pausing for as long as before.
    """
    began = back = -math.inf
    for start, end in server:
        if start > back:
            began = start
        back = end + AFTER_OUTAGE + min(LONGEST_PAUSE, end - began)
        yield start - AFTER_CUT, back


def _left_behind(request: Request, occupation: Occupation, verdict: Verdict) -> float:
    """Find a request that waited beside a free lock; return for how many seconds."""
    if request.wait == 0:
        return 0.0
    end = request.ended if request.hold is None else request.hold.granted
    start, until = occupation.free(request, end)
    if until - start > LEFT_BEHIND:
        text = f"{request} waited for {until - start:.3f} s from {start:.6f} beside a free lock"
        verdict.violations.append(Violation("left behind", text, (request.handle,), start))
    return until - start


def _unpunctual(request: Request, occupation: Occupation, story: Story, verdict: Verdict) -> None:
    """Find a request that was answered too late, refused too early, or refused for no reason."""
    if request.wait is None or request.outcome in ("killed", "gave_up", ""):
        return
    began, ended, wait = request.began, request.ended, request.wait
    took = ended - began
    allowed = wait + LATE + story.stood_still(request.process).covered(began, ended)
    if story.server.touch(began - 0.1, ended):
        allowed += story.server.covered(began, ended) + OUTAGE_COSTS
    problem = ""
    if took > allowed:
        problem = f"was answered after {took:.3f} s, and not within {wait:.3f} s"
    elif request.outcome == "refused" and took < wait - EARLY:
        problem = f"was refused after {took:.3f} s, though it would wait {wait:.3f} s"
    elif wait == 0 and request.outcome == "refused" and occupation.idle(request):
        problem = "was refused though the lock was free and without waiters"
    if problem:
        text = f"{request} {problem}"
        verdict.violations.append(Violation("unpunctual", text, (request.handle,), ended))
