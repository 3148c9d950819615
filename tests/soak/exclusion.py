"""The rules on holding: no overlap, rising fences, promises kept, nothing lost that comes back.

What a history can prove. A server carries out its scripts one after the other. When
``ensure_held()`` returns, the server found the lock under this handle's token at some moment
between the call and its return; the same goes for ``extend()``, ``reacquire()`` and ``acquire()``,
which wrote it there. A token is made for one acquisition and written once. So a handle certainly
held its lock from the return of its ``acquire()`` until the beginning of its last confirmed call,
and these spans must not overlap for two handles of one lock.

Nothing is excused from that, not even by a restart that loses the data or by a forced release. They
end a hold, but then the server confirms it no more: the confirmations before them came from the
server that still knew it, and those after them, to another holder, are later.

``release()`` confirms nothing: after a lost reply it can return without the server having found
the token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.soak.story import Hold, Story, by_name
from tests.soak.verdict import Verdict, Violation

EARLY = 0.005
"""Seconds by which a lease may end before its promised end: the server counts whole milliseconds
by the wall clock, which may be slewed."""


def judge(story: Story, verdict: Verdict) -> None:
    """Add the violations of the rules on holding."""
    for holds in by_name(story.holds).values():
        holds.sort(key=lambda hold: hold.fence)
        verdict.violations += _same_fence(holds)
        verdict.violations += _overlaps_and_order(holds)
        verdict.violations += _broken_promises(story, holds)
        verdict.violations += _long_promises(holds)
    verdict.violations += _revivals(story)


def _same_fence(holds: list[Hold]) -> Iterator[Violation]:
    for one, other in pairwise(holds):
        if one.fence == other.fence:
            yield _between("fence given twice", one, other, f"{one} and {other}")


def _overlaps_and_order(holds: list[Hold]) -> Iterator[Violation]:
    """Find pairs of which the one with the greater fence was not the later one.

    A hold came before another if its ``acquire()`` had returned before the other's last confirmed
    call began. Where each came before the other they overlap. Where only the one with the greater
    fence came before the other, a fence went back.
    """
    for lesser, greater in _pairs(holds, lambda hold: hold.confirmed):
        if greater.acquired >= lesser.confirmed:
            continue
        if lesser.acquired < greater.confirmed:
            start = max(lesser.acquired, greater.acquired)
            end = min(lesser.confirmed, greater.confirmed)
            yield _between(
                "overlap",
                lesser,
                greater,
                f"{lesser} and {greater} were both held from {start:.6f} to {end:.6f}",
            )
        else:
            yield _between("fence went back", greater, lesser, f"{lesser} came after {greater}")


def _broken_promises(story: Story, holds: list[Hold]) -> Iterator[Violation]:
    """Find locks given to another while ``held.remaining`` promised that they are held.

    A promise is excused by a forced release or a loss of data. It ends when the holder asks for a
    release, or for another lease, until the server has answered.
    """
    for earlier, later in _pairs(holds, lambda hold: max(end for _, end in hold.promises)):
        short = earlier.promised(later.acquired) - later.acquired
        if short > EARLY and not ended_by_others(story, earlier, later.acquired):
            yield _between(
                "promise broken",
                earlier,
                later,
                f"{later} was acquired {short * 1000:.0f} ms before the end that {earlier} was "
                f"promised",
            )


def _long_promises(holds: list[Hold]) -> Iterator[Violation]:
    """Find leases whose end was promised later than the lease after they were given.

    A fence tells when the lock was given by the server's clock, which the driver has compared with
    the monotonic clock all the time. A handle that learned of its lock after the lease, because its
    process stood still, promises nothing.
    """
    for hold in holds:
        at, until = hold.promises[0]
        excess = until - hold.fence_moment - hold.request.lease
        if excess > EARLY and until - at > EARLY:
            yield Violation(
                "promise too long",
                f"{hold} was promised {excess * 1000:.0f} ms more than its lease",
                (hold.request.handle,),
                hold.acquired,
            )


def _revivals(story: Story) -> Iterator[Violation]:
    """Find holds confirmed after they were certainly ended: a renewal must not bring one back."""
    broken = {(item.name, item.fence): item.at for item in story.breaks}
    wiped = sorted(story.wipes)
    for hold in story.holds:
        over = broken.get((hold.name, hold.fence))
        # A loss of data that began after the lock was given ended the hold.
        index = bisect_left(wiped, (hold.acquired, 0.0))
        if index < len(wiped):
            over = min(wiped[index][1], over or wiped[index][1])
        if over is not None and over < hold.confirmed:
            yield Violation(
                "came back",
                f"{hold} was ended at {over:.6f}, and confirmed by a call at {hold.confirmed:.6f}",
                (hold.request.handle,),
                hold.confirmed,
            )


def ended_by_others(story: Story, hold: Hold, moment: float) -> bool:
    """Return whether somebody else may have ended a hold by a moment.

    By a forced release, a loss of data, a step of the server's clock or a failover.
    """
    return any(
        item.name == hold.name and item.fence in (hold.fence, None) and item.since <= moment
        for item in story.breaks
        if item.at >= hold.granted
    ) or any(
        since <= moment and at >= hold.granted for since, at in (*story.wipes, *story.unsettled)
    )


def _pairs(holds: list[Hold], reach: Callable[[Hold], float]) -> Iterator[tuple[Hold, Hold]]:
    """Yield the pairs, the lesser fence first, of which the first reaches past the second's start.

    Every such pair, without comparing all with all: a hold is dropped from the comparison when
    none of those still to come was acquired early enough.
    """
    earliest = [hold.acquired for hold in holds]
    for index in range(len(holds) - 2, -1, -1):
        earliest[index] = min(earliest[index], earliest[index + 1])
    open_: list[Hold] = []
    for hold, still_to_come in zip(holds, earliest, strict=True):
        open_ = [before for before in open_ if reach(before) > still_to_come]
        for before in open_:
            if reach(before) > hold.acquired:
                yield before, hold
        open_.append(hold)


def _between(rule: str, one: Hold, other: Hold, text: str) -> Violation:
    handles = (one.request.handle, other.request.handle)
    return Violation(rule, text, handles, max(one.acquired, other.acquired))
