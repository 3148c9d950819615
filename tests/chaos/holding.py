"""The rules on holding: no overlap, rising fences, kept promises, and no hold that comes back.

A server carries out its scripts one after the other. When ``ensure_held()``, ``extend()``,
``reacquire()`` or ``acquire()`` returns, the server found or wrote this handle's token at some
moment during the call. A token is made for one acquisition and written once. So a handle held its
lock from the return of its ``acquire()`` until the beginning of its last confirmed call, and these
spans must not overlap for two handles of one lock, unless both share it. How many may share a lock,
and who was next, is for ``tests.judge`` to say.

No fault excuses an overlap. A loss of data or a forced release ends a hold, and then the server
confirms it no more. ``release()`` confirms nothing: after a lost reply it can return although the
server never found the token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise

from django_redis_lock.protocol.waiting import CLAIM
from tests.chaos.story import Hold, Story, Violation

EARLY = 0.005
"""Seconds by which a lease may end early: the server's clock counts milliseconds, and may be
slewed."""


def judge(story: Story) -> Iterator[Violation]:
    for holds in story.holds_by_name():
        yield from _same_fence(holds)
        yield from _overlaps_and_order(holds)
        yield from _broken_promises(story, holds)
    yield from _revivals(story)


def _same_fence(holds: list[Hold]) -> Iterator[Violation]:
    for one, other in pairwise(holds):
        if one.fence == other.fence:
            yield _between("fence given twice", one, other, f"{one} and {other}")


def _overlaps_and_order(holds: list[Hold]) -> Iterator[Violation]:
    """Find pairs in which the hold with the greater fence was not the later one.

    A hold came before another if its ``acquire()`` had returned before the other's last confirmed
    call began. If each came before the other they overlap. If only the one with the greater fence
    came before the other, a fence went back.
    """
    for lesser, greater in _pairs(holds, lambda hold: hold.confirmed):
        if greater.acquired >= lesser.confirmed:
            continue
        if lesser.acquired < greater.confirmed:
            start = max(lesser.acquired, greater.acquired)
            end = min(lesser.confirmed, greater.confirmed)
            text = f"{lesser} and {greater} were both held from {start:.6f} to {end:.6f}"
            yield _between("overlap", lesser, greater, text)
        else:
            yield _between("fence went back", greater, lesser, f"{lesser} came after {greater}")


def _broken_promises(story: Story, holds: list[Hold]) -> Iterator[Violation]:
    """Find locks given to another handle while ``held.remaining`` promised that they are held. A
    promise ends when the holder is told of a loss, or requests a release or another lease, until
    the server has answered."""
    for earlier, later in _pairs(holds, lambda hold: max(end for _, end in hold.promises)):
        short = earlier.promised(later.acquired) - later.acquired
        taken_over = later.request.ticket is not None
        if short > EARLY and not taken_over and not ended_by_others(story, earlier, later.acquired):
            text = f"{later} was acquired {short * 1000:.0f} ms before {earlier} was to end"
            yield _between("promise broken", earlier, later, text)


def _revivals(story: Story) -> Iterator[Violation]:
    """Find holds confirmed after they were certainly ended, as by a renewal that revives one."""
    forced = {(item["name"], item["fence"]): item["time"] for item in story.forced}
    wiped = sorted(story.wipes)
    for hold in story.holds:
        over = forced.get((hold.request.name, hold.fence))
        index = bisect_left(wiped, (hold.acquired, 0.0))  # the first loss of data after the grant
        if index < len(wiped):
            over = min(wiped[index][1], over or wiped[index][1])
        if over is not None and over < hold.confirmed:
            text = f"{hold} was ended at {over:.6f}, and confirmed at {hold.confirmed:.6f}"
            yield Violation("came back", text, hold.confirmed)


def ended_by_others(story: Story, hold: Hold, moment: float) -> bool:
    """Return whether a hold may have been ended by a moment, and not by its holder or its lease.
    That is by a forced release, a loss of data, a step of the server's clock or a failover, or
    because the claim of a lock that was handed off came too late."""
    for item in story.forced:
        of_this = item["name"] == hold.request.name and item["fence"] in (hold.fence, None)
        if of_this and during(hold, moment, [(item["since"], item["time"])]):
            return True
    if during(hold, moment, story.wipes + story.unsettled):
        return True
    return _unclaimed(story, hold)


def _unclaimed(story: Story, hold: Hold) -> bool:
    """Return whether the server may have taken a hand-off back. It does if no claim and no other
    call of the holder reached it in time, so only if the server or the holder's process stood
    still."""
    if hold.confirmed >= hold.acquired:
        return False
    span = hold.request.began, hold.acquired + CLAIM
    return story.server.touch(*span) or story.stood_still(hold.request.process).touch(*span)


def during(hold: Hold, moment: float, spans: list[tuple[float, float]]) -> bool:
    """Return whether one of the spans touches the time from the request of a hold to a moment."""
    return any(since <= moment and at >= hold.request.began for since, at in spans)


def _pairs(holds: list[Hold], reach: Callable[[Hold], float]) -> Iterator[tuple[Hold, Hold]]:
    """Yield the pairs, lesser fence first, of which the first reaches past the second's start, and
    that don't share the lock. A hold is dropped from the comparison when no later one was acquired
    early enough."""
    earliest = [hold.acquired for hold in holds]
    for index in range(len(holds) - 2, -1, -1):
        earliest[index] = min(earliest[index], earliest[index + 1])
    open_: list[Hold] = []
    for hold, still_to_come in zip(holds, earliest, strict=True):
        open_ = [before for before in open_ if reach(before) > still_to_come]
        for before in open_:
            if reach(before) > hold.acquired and not (before.shared and hold.shared):
                yield before, hold
        open_.append(hold)


def _between(rule: str, one: Hold, other: Hold, text: str) -> Violation:
    return Violation(rule, text, max(one.acquired, other.acquired))
