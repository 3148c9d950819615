"""The rules on errors: only those of the contract reach callers, and none without a cause."""

from __future__ import annotations

from django_redis_lock.protocol.conversation import RETRY_FOR
from tests.soak.exclusion import ended_by_others
from tests.soak.history import Event
from tests.soak.story import Story, Trouble
from tests.soak.verdict import Verdict, Violation

EARLY = 0.005
"""Seconds by which a lease may end before its promised end."""
BEARABLE = 0.5
"""Seconds of an outage that callers don't notice: their calls are sent again for a while."""
TRYING = 4.0
"""Seconds before an error from which its last tries were; each lasts up to a second."""
SLACK = 0.05


def judge(story: Story, verdict: Verdict) -> None:
    """Add the violations of the rules on errors."""
    verdict.violations += [_alarm(event) for event in story.alarms]
    for trouble in story.troubles:
        if trouble.kind == "unavailable" and story.refusals.touch(trouble.since, trouble.at):
            continue  # a refusal is told at once
        excused = _lost if trouble.kind == "lost" else _unavailable
        if not excused(story, trouble):
            verdict.violations.append(
                Violation(
                    "no cause",
                    f"{trouble.doing} of {trouble.request} at {trouble.at:.6f} raised without a "
                    f"cause: {trouble.error}",
                    (trouble.request.handle,),
                    trouble.at,
                )
            )


def _lost(story: Story, trouble: Trouble) -> bool:
    """Return whether a holder was told of a loss for a reason.

    Its lease had passed, by the end that it was last promised; or others ended the hold, or one of
    several servers forgot its vote for it. A lease that is renewed passes only where its process or
    the server stood still, or where a release that was asked for in time had to be tried again.
    """
    hold = trouble.request.hold
    if hold is None or trouble.error.startswith("LockNotOwned"):
        return False  # nobody loses what was never acquired, or learns that it never was
    if ended_by_others(story, hold, trouble.at):
        return True
    if any(since <= trouble.at and at >= hold.granted for since, at in story.thinned):
        return True
    if trouble.at < trouble.until - EARLY:
        return False
    in_time = hold.releasing is not None and hold.releasing < trouble.until
    if not hold.request.renewed or in_time:
        return True
    start = max(hold.granted, trouble.until - hold.request.lease)
    process = story.process(trouble.request.process)
    return process.touch(start, trouble.at) or story.server.touch(start, trouble.at)


def _unavailable(story: Story, trouble: Trouble) -> bool:
    """Return whether a server was away for so long that a caller may be told of it.

    Calls are sent again for a while, so one that meets a cut connection, a quick restart or a short
    pause of its process goes on, unless the caller's own time ran out meanwhile. Two of them in a
    row can use up its tries.
    """
    since, at = trouble.since - SLACK, trouble.at + SLACK
    request, process = trouble.request, story.process(trouble.request.process)
    if story.server.covered(since, at) >= BEARABLE or process.covered(since, at) >= RETRY_FOR:
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
    process = event.get("worker", event["process"])
    text = {
        "failed": lambda: f"{event['doing']} raised what it must not:\n{event['trace']}",
        "logged": lambda: f"process {process} logged:\n{event['trace']}",
        "died": lambda: f"process {process} ended with exit code {event['code']}",
        "stuck": lambda: f"process {process} did not finish:\n{event.get('trace', '')}",
        "left": lambda: f"the server was left with {', '.join(event['keys'])}",
    }[event["kind"]]()
    handles = (event["handle"],) if "handle" in event else ()
    return Violation(event["kind"], text, handles, event["at"])
