"""Reads the history of a run and says what must never have happened.

A pure function of the events. What each rule claims, and why it can be claimed, is said where it
is: ``exclusion`` (overlaps, fences, promises, revivals), ``waiting`` (waiters left behind, late
answers, overtaking) and ``telling`` (errors without a cause, and what is wrong by itself).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.soak import exclusion, telling, waiting
from tests.soak.history import Event
from tests.soak.story import Story, by_name
from tests.soak.verdict import Verdict


def check(events: Iterable[Event]) -> Verdict:
    """Return the verdict on a run; each process's events must come in their order."""
    story = Story(events)
    verdict = Verdict(faults=dict(story.faults))
    for rules in (exclusion, waiting, telling):
        rules.judge(story, verdict)
    outcomes = Counter(request.outcome for request in story.requests)
    troubles = Counter(trouble.kind for trouble in story.troubles)
    verdict.figures |= {
        "acquisitions": len(story.holds),
        "handovers": _handovers(story),
        "entered again": outcomes["acquired"] - len(story.holds),
        "refused": outcomes["refused"],
        "waits given up": outcomes["gave_up"],
        "losses told": troubles["lost"],
        "server unavailable": troubles["unavailable"],
        "workers killed": len(story.killed),
    }
    return verdict


def _handovers(story: Story) -> int:
    """Count the holds that came to one who was waiting when the holder before let go."""
    count = 0
    for holds in by_name(story.holds).values():
        holds.sort(key=lambda hold: hold.fence)
        for before, after in pairwise(holds):
            if before.releasing is not None and before.ended is not None:
                count += after.request.began < before.releasing <= after.granted <= before.ended
    return count
