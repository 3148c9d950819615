"""Reads the history of a run and finds what must never happen; a pure function of the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.chaos import errors, holding, waiting
from tests.chaos.history import Event
from tests.chaos.story import Story, Verdict, by_name


def check(events: Iterable[Event]) -> Verdict:
    story = Story(events)
    verdict = Verdict(faults=dict(story.faults))
    for rules in (holding, waiting, errors):
        rules.judge(story, verdict)
    outcomes = Counter(request.outcome for request in story.requests)
    troubles = Counter(trouble.kind for trouble in story.troubles)
    verdict.figures |= {
        "acquisitions": len(story.holds),
        "hand-offs": _hand_offs(story),
        "refused": outcomes["refused"],
        "waits given up": outcomes["gave_up"],
        "LockLost": troubles["lost"],
        "LockUnavailable": troubles["unavailable"],
        "workers killed": len(story.killed),
    }
    return verdict


def _hand_offs(story: Story) -> int:
    """Count the holds of requests that were waiting when the holder before released."""
    count = 0
    for holds in by_name(story.holds).values():
        holds.sort(key=lambda hold: hold.fence)
        for before, after in pairwise(holds):
            if before.releasing is not None and before.ended is not None:
                count += after.request.began < before.releasing <= after.granted <= before.ended
    return count
