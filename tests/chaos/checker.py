"""Reads the history of a run and finds what must never happen; a pure function of the events. The
rules on holds are in ``holding``. Those here are on errors: callers see only those of the contract,
and none without a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.chaos import holding
from tests.chaos.history import Event
from tests.chaos.holding import EARLY, during, ended_by_others
from tests.chaos.story import Request, Story, Verdict, Violation

SLACK = 0.05
"""Seconds around a call in which what disturbed it was seen."""


def check(events: Iterable[Event]) -> Verdict:
    story = Story(events)
    violations = [*holding.judge(story), *map(_alarm, story.alarms)]
    for request, event in story.troubles:
        has_cause = _lost if event["type"] == "fail" else _unavailable
        if not has_cause(story, request, event):
            text = (
                f"{event['f']} of {request} at {event['time']:.6f} raised without a cause: "
                f"{event['error']}"
            )
            violations.append(Violation("no cause", text, event["time"]))
    types = Counter(event["type"] for _, event in story.troubles)
    figures = {
        "acquisitions": len(story.holds),
        "hand-offs": _hand_offs(story),
        "refused": story.kinds["acquire", "fail"],
        **{f: story.kinds[f, "ok"] for f in ("downgrade", "detach", "take_over", "set_limit")},
        "LockLost": types["fail"],
        "LockUnavailable": types["info"],
        "workers killed": story.kinds["killed", "info"],
    }
    return Verdict(violations, figures, dict(story.faults))


def _hand_offs(story: Story) -> int:
    """Count the holds of requests that were waiting when the holder before released."""
    return sum(
        after.request.began < before.releasing <= after.acquired
        for holds in story.holds_by_name()
        for before, after in pairwise(holds)
        if before.releasing is not None
    )


def _lost(story: Story, request: Request, event: Event) -> bool:
    """Return whether a holder lost its lock for a reason.

    Its lease had passed by its promised end, the hold was ended by others, or one of several
    servers lost its vote for it. A renewed lease passes only if its process or the server stood
    still, or one of several servers did that was not the one without a vote for it, or if a release
    that was requested in time was tried again.
    """
    hold, at = request.hold, event["time"]
    if hold is None or event["error"].startswith("LockNotOwned"):
        return False  # what was never acquired can't be lost
    if ended_by_others(story, hold, at) or during(hold, at, story.lost_votes):
        return True
    if at < hold.until - EARLY:
        return False
    in_time = hold.releasing is not None and hold.releasing < hold.until
    if not request.renewed or in_time:
        return True
    start = max(request.began, hold.until - request.lease)
    missing = story.missing_votes
    if missing.touch(request.began, hold.acquired) and missing.touch(start, at):
        return True
    return story.stood_still(request.process).touch(start, at) or story.server.touch(start, at)


def _unavailable(story: Story, request: Request, event: Event) -> bool:
    """Return whether a server was away, a connection was cut, or the process stood still. A server
    that was away when the lock was acquired has no vote for it."""
    since, at = event["since"] - SLACK, event["time"] + SLACK
    disturbances = story.server, story.cuts, story.stood_still(request.process)
    voted = since if request.hold is None else request.began
    return any(each.touch(since, at) for each in disturbances) or story.missing_votes.touch(
        voted, at
    )


def _alarm(event: Event) -> Violation:
    return Violation(event["f"], event.get("trace", str(event)), event["time"])
