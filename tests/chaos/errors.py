"""The rules on errors: callers see only those of the contract, and none without a cause."""

from __future__ import annotations

from django_redis_lock.protocol.calls import RETRY_FOR
from tests.chaos.history import Event
from tests.chaos.holding import EARLY, during, ended_by_others
from tests.chaos.story import Story, Trouble, Verdict, Violation

UNNOTICED = 0.5
"""Seconds of an outage that callers don't notice: their calls are sent again for a while."""
TRYING = 4.0
"""Seconds before an error in which its last tries were; each lasts up to a second."""
SLACK = 0.05


def judge(story: Story, verdict: Verdict) -> None:
    verdict.violations += [_alarm(event) for event in story.alarms]
    for trouble in story.troubles:
        has_cause = _lost if trouble.kind == "lost" else _unavailable
        if not has_cause(story, trouble):
            text = (
                f"{trouble.doing} of {trouble.request} at {trouble.at:.6f} raised without a cause: "
                f"{trouble.error}"
            )
            handles = (trouble.request.handle,)
            verdict.violations.append(Violation("no cause", text, handles, trouble.at))


def _lost(story: Story, trouble: Trouble) -> bool:
    """Return whether a holder lost its lock for a reason.

    Its lease had passed by its promised end, the hold was ended by others, or one of several
    servers lost its vote for it. A renewed lease passes only if its process or the server stood
    still, or if a release that was requested in time was tried again.
    """
    hold = trouble.request.hold
    if hold is None or trouble.error.startswith("LockNotOwned"):
        return False  # what was never acquired can't be lost
    if ended_by_others(story, hold, trouble.at) or during(hold, trouble.at, story.lost_votes):
        return True
    if trouble.at < trouble.until - EARLY:
        return False
    in_time = hold.releasing is not None and hold.releasing < trouble.until
    if not hold.request.renewed or in_time:
        return True
    start = max(hold.granted, trouble.until - hold.request.lease)
    process = story.stood_still(trouble.request.process)
    return process.touch(start, trouble.at) or story.server.touch(start, trouble.at)


def _unavailable(story: Story, trouble: Trouble) -> bool:
    """Return whether a server was away for so long that a caller may be told.

    Calls are sent again for a while, so a call survives a cut connection, a quick restart or a
    short pause of its process, unless the caller's own time runs out. Two of these in a row can use
    up its tries. A refusal is raised at once.
    """
    since, at = trouble.since - SLACK, trouble.at + SLACK
    hold = trouble.request.hold
    if hold is not None and len(story.missing_votes.between(hold.granted_after, at)) >= 2:
        return True  # a server that was away when the lock was acquired has no vote for it
    request, process = trouble.request, story.stood_still(trouble.request.process)
    if story.refusals.touch(trouble.since, trouble.at):
        return True
    if story.server.covered(since, at) >= UNNOTICED or process.covered(since, at) >= RETRY_FOR:
        return True
    out_of_time = (
        request.hold is None and request.wait is not None and at >= request.began + request.wait
    )
    if out_of_time and story.server.touch(since, at):
        return True
    lately = max(since, at - TRYING)
    met = [
        *story.server.between(lately, at),
        *process.between(lately, at),
        *(cut for cut in story.cuts if lately <= cut <= at),
    ]
    return len(met) >= 2


def _alarm(event: Event) -> Violation:
    process = f"process {event.get('worker', event['process'])}"
    match event["kind"]:
        case "failed":
            text = f"{event['doing']} broke the contract by raising:\n{event['trace']}"
        case "logged":
            text = f"{process} logged:\n{event['trace']}"
        case "died":
            text = f"{process} ended with exit code {event['code']}"
        case "stuck":
            text = f"{process} did not finish:\n{event.get('trace', '')}"
        case _:
            text = f"the server was left with {', '.join(event['keys'])}"
    handles = (event["handle"],) if "handle" in event else ()
    return Violation(event["kind"], text, handles, event["at"])
